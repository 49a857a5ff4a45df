"""Races against a daemon, and the proof that it kept its promises.

library_text.py     generated libraries, whose answers tell their version
race.py             threads that load, replace, unload and call; what each of them saw
history.py          whether one registry can have shown them all that; pure
report.py           the numbers; pure
private_daemon.py   a daemon of one's own to race against
"""
