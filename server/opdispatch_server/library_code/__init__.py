"""The code of libraries: stored, taken apart, imported, and seen in tracebacks.

digest             the SHA-256 that names an upload, and that it is checked by
library_store      uploaded libraries on disk, each under the SHA-256 of its content
partial_file       an upload that has not come whole yet
library_archive    a source file or a zip archive, and the module to import in it
archive_members    which files of an archive may be read
module_file        which file a module would be imported from, without importing it
unpacked_libraries uploads as folders that can only be read, shared by interpreters
library_modules    the modules of one uploaded library, imported from its folder
module_names       what their names mean in ``sys.modules``, when several libraries have them
module_import      bringing code into an interpreter, and letting it go again
user_traceback     tracebacks of that code, without the frames of ours
"""
