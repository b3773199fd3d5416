"""Threads that import pydantic-ai at the same time, such as resumed rows of a sweep."""

from __future__ import annotations

import subprocess
import sys

_AT_ONCE = """
import sys, threading
from nb_agents.agents.message_json import dump_messages, load_messages
from nb_agents.models.found_providers import found_providers
from nb_agents.models.providers import load

wait = threading.Barrier(5)

def call(function, *args):
    wait.wait()
    try:
        function(*args)
    except Exception as exc:
        print(exc, flush=True)

calls = [(__import__, "pydantic_ai"), (load,), (load_messages, []), (dump_messages, []),
         (found_providers,)]
threads = [threading.Thread(target=call, args=each) for each in calls]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done" if "pydantic_ai" in sys.modules else "not imported")
"""


def test_concurrent_imports_see_complete_modules() -> None:
    argv = [sys.executable, "-c", _AT_ONCE]
    environ = {"OPENAI_API_KEY": "k"}

    said = subprocess.run(argv, capture_output=True, text=True, check=True, env=environ)

    assert said.stdout == "done\n"
