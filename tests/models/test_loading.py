"""Threads that import pydantic-ai at the same time, as rows of a sweep that are resumed do."""

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


def test_threads_that_need_models_at_once_see_no_half_of_a_module() -> None:
    argv = [sys.executable, "-c", _AT_ONCE]
    environ = {"OPENAI_API_KEY": "k"}

    said = subprocess.run(argv, capture_output=True, text=True, check=True, env=environ)

    assert said.stdout == "done\n"
