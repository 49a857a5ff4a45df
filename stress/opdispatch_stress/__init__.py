"""Races against a daemon, and the proof that it kept its promises.

commands.py         `opdispatch stress`
library_text.py     generated libraries, whose answers tell their version
race.py             the race: who takes part, from start to end
racers.py           those who load, call and wait
disruptions.py      kills, and which failures they excuse
race_log.py         what each of them saw
linearizability.py  whether operations can have happened one after the other; pure
history.py          whether one registry can have shown them all that; pure
leaks.py            what must not be left when it is over
report.py           the numbers; pure
private_daemon.py   a daemon of one's own to race against
marked_processes.py its processes, found by a mark
"""
