"""The member as Ray runs it: a process that imports this loads torch without looking for garbage meanwhile.

Torch makes objects by the hundred thousand as it loads, and all stay: looking through them took 0.4 of the 3.3 s of a
core that a member's process needs to load.
"""

import gc

_before = gc.get_threshold()
gc.set_threshold(50_000)
try:
    from ray_adaplr.engine import member
finally:
    gc.set_threshold(*_before)


class Member(member.Member):
    """A member that is sent to Ray; what it is and does is the other's."""
