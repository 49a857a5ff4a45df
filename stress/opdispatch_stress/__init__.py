"""Stress tests: race against a daemon, and check that it kept its guarantees.

commands.py         `opdispatch stress`
library_text.py     generated libraries whose results identify their version
race.py             the race: its threads, from start to end
racers.py           threads that load, call and wait
disruptions.py      kills, and the failures that they are expected to cause
race_log.py         the observations of each thread
linearizability.py  checks whether a history is linearizable; pure
history.py          checks observations against one registry; pure
leaks.py            resources that must be released afterwards
report.py           the report; pure
private_daemon.py   a private daemon to race against
marked_processes.py finds its processes by a mark in their environment
"""
