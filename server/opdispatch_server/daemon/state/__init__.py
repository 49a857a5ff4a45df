"""The persistent state of a daemon: its folder, and the journal in it.

folder          the ownership of the folder, and the paths in it
journal         every change of the registry, on disk before it is visible
journal_database  the SQLite database, checked whole whenever it is opened
journal_format  its tables, the number of its format, the migrations from older ones
journal_record  the journal's record of a library
archive         a state folder as one file
named_libraries                         all libraries that its journals name
unused_uploads, unused_environments     files that none of these libraries needs
"""
