"""Python code run in another process, talked to in lines."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent


@contextmanager
def python(code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """Run code with arguments; whatever is left of it at the end is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def output(code: str, *args: object) -> str:
    """Run code to its end and give what it printed."""
    with python(code, *args) as process:
        out, _ = process.communicate()
        assert process.returncode == 0, out
        return out


def line(process: subprocess.Popen[str]) -> str:
    """Wait for the next line that the process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], text: str = "") -> None:
    """Send the process a line."""
    assert process.stdin is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()
