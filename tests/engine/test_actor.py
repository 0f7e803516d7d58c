"""A member's process loads without looking for garbage, and looks for it afterwards as any other does."""

import subprocess
import sys

CODE = """
import gc
looks, before = [], gc.get_threshold()
gc.callbacks.append(lambda phase, info: looks.append(info["generation"]))
import ray_adaplr.engine.actor
assert gc.get_threshold() == before
print(len(looks) // 2)
"""


def test_a_process_that_loads_a_member_looks_for_garbage_only_a_few_times() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=600, check=True)
    assert int(done.stdout) < 50
