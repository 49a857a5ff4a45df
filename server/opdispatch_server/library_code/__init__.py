"""The code of libraries: stored, taken apart, imported, and seen in tracebacks.

library_store     uploaded libraries on disk, each under the SHA-256 of its content
library_archive   the modules in a source file or a zip archive
archive_members   which files of an archive may be read
module_file       which file a module would be imported from, without importing it
module_import     bringing code into an interpreter, and letting it go again
user_traceback    tracebacks of that code, without the frames of ours
"""
