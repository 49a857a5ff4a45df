"""Installing from a registry, which takes minutes: `make installs` runs these."""
