"""The state that survives a daemon: its folder, and the journal in it.

folder          whose folder it is at the moment, and where in it everything lies
journal         every change of the registry, on disk before it can be seen
journal_file    the SQLite database, checked whole whenever it is opened
journal_format  its tables, the number of its format, the migrations from older ones
journal_record  what the journal says of a library
archive         a state folder as one file
named_libraries                         what all of its journals name
unused_uploads, unused_environments     what none of these needs any more
"""
