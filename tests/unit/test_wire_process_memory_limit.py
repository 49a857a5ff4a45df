"""The memory that a process may use: control groups of both versions, nested, and none."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from opdispatch_wire.process_memory_limit import memory_limit
from tests.waits import LONGEST_WAIT

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
MIB = 2**20
NO_LIMIT_V1 = "9223372036854771712"


def system(root: Path, cgroup: str, mountinfo: str, files: dict[str, str]) -> Path:
    """A system whose /proc and control groups say these things."""
    for name, text in {
        "proc/self/cgroup": cgroup,
        "proc/self/mountinfo": mountinfo,
        **files,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = "0::/user.slice/app.service\n"
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/\n"
V1_MOUNT = (
    "30 23 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "31 23 0:27 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, MACHINE),
        ({"user.slice/app.service/memory.max": "max\n"}, MACHINE),
        ({"user.slice/app.service/memory.max": f"{300 * MIB}\n"}, 300 * MIB),
        ({"user.slice/app.service/memory.max": f"{MACHINE * 2}\n"}, MACHINE),
        (
            {
                "user.slice/app.service/memory.max": "max\n",
                "user.slice/memory.max": f"{200 * MIB}\n",
                "memory.max": f"{400 * MIB}\n",
            },
            200 * MIB,
        ),
        ({"memory.max": f"{400 * MIB}\n"}, 400 * MIB),
        ({"user.slice/other.service/memory.max": f"{MIB}\n"}, MACHINE),
        ({"user.slice/memory.max": "nonsense\n"}, MACHINE),
        ({"user.slice/memory.max": ""}, MACHINE),
    ],
)
def test_version_2_limits_by_the_least_of_the_groups_around(
    tmp_path: Path, files: dict[str, str], limit: int
):
    placed = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    assert memory_limit(system(tmp_path, V2, V2_MOUNT, placed)) == limit


@pytest.mark.parametrize(
    ("root", "files", "limit"),
    [
        ("/", {"docker/abc": NO_LIMIT_V1, "docker": NO_LIMIT_V1, ".": NO_LIMIT_V1}, MACHINE),
        ("/", {"docker/abc": f"{300 * MIB}\n"}, 300 * MIB),
        ("/", {"docker/abc": NO_LIMIT_V1, "docker": f"{200 * MIB}\n"}, 200 * MIB),
        # In a container, the group is the root of what is mounted.
        ("/docker/abc", {".": f"{100 * MIB}\n"}, 100 * MIB),
        ("/docker", {"abc": f"{100 * MIB}\n"}, 100 * MIB),
        ("/elsewhere", {".": f"{100 * MIB}\n"}, 100 * MIB),
    ],
)
def test_version_1_limits_by_the_group_of_the_memory_controller(
    tmp_path: Path, root: str, files: dict[str, str], limit: int
):
    placed = {
        f"sys/fs/cgroup/memory/{name}/memory.limit_in_bytes": text for name, text in files.items()
    }
    assert memory_limit(system(tmp_path, V1, V1_MOUNT.format(root=root), placed)) == limit


def test_the_least_limit_of_both_versions_counts(tmp_path: Path):
    files = {
        "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{300 * MIB}\n",
        "sys/fs/cgroup/user.slice/memory.max": f"{200 * MIB}\n",
    }
    mounts = V1_MOUNT.format(root="/") + V2_MOUNT
    assert memory_limit(system(tmp_path, V1 + V2, mounts, files)) == 200 * MIB


def test_a_mount_point_may_have_blanks(tmp_path: Path):
    mount = V2_MOUNT.replace("/sys/fs/cgroup", r"/my\040groups")
    files = {"my groups/user.slice/memory.max": f"{200 * MIB}\n"}
    assert memory_limit(system(tmp_path, V2, mount, files)) == 200 * MIB


@pytest.mark.parametrize("text", ["", "\n", "nonsense", "0::", "0:memory", "1 2 3 - cgroup2", "- "])
def test_unreadable_limit_is_ignored(tmp_path: Path, text: str):
    assert memory_limit(system(tmp_path, text, text, {})) == MACHINE
    assert memory_limit(tmp_path / "missing") == MACHINE


def test_a_process_in_a_real_group_knows_its_limit():
    own = [
        line.split(":", 2)
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if line.startswith("0::") or ":memory:" in line
    ]
    for number, _, group in own:
        v2 = number == "0"
        mounted = Path("/sys/fs/cgroup" if v2 else "/sys/fs/cgroup/memory")
        folder = mounted / group.lstrip("/") / f"opdispatch-{uuid.uuid4().hex}"
        limit = folder / ("memory.max" if v2 else "memory.limit_in_bytes")
        try:
            folder.mkdir()
        except OSError:
            continue  # only root may
        try:
            if not limit.exists():
                continue  # the hierarchy does not limit memory
            limit.write_text(str(512 * MIB))
            script = (
                f"import os; open({str(folder / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
                "from opdispatch_wire.process_memory_limit import memory_limit\n"
                "from opdispatch_wire.shared_memory.memory_budget import MemoryBudget\n"
                "from opdispatch_server.daemon_configuration import default_call_bytes\n"
                "print(memory_limit(), MemoryBudget().limit, default_call_bytes())"
            )
            done = subprocess.run(
                [sys.executable, "-c", script],
                capture_output=True,
                text=True,
                check=False,
                timeout=LONGEST_WAIT,
            )
        finally:
            folder.rmdir()
        assert done.stdout.split() == [str(n * MIB) for n in (512, 128, 128)], done.stderr
        return
    pytest.skip("no control group can be made here")
