"""The code of libraries: stored, unpacked, imported, and shown in tracebacks.

digest             the SHA-256 that names an upload and verifies it
library_store      uploaded libraries on disk, each under the SHA-256 of its content
partial_file       an incomplete upload
library_archive    a source file or a zip archive, and the module to import in it
archive_members    checks the files of an archive
module_file        find the file of a module without importing it
unpacked_libraries uploads as read-only folders, shared by interpreters
library_modules    the modules of one uploaded library, imported from its folder
module_names       names in ``sys.modules`` that several libraries use
module_import      importing code into an interpreter, and releasing it
user_traceback     tracebacks of that code, without opdispatch's frames
"""
