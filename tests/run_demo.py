"""Run a notebook in a real kernel and show the output that a user would see.

Prints the plain text of every output in order and writes the executed notebook as HTML.
Exits with 1 if a cell failed; the HTML then shows the failure.

    python tests/run_demo.py notebooks/quickstart.ipynb build/quickstart.html
"""

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal, CellExecutionError, DeadKernelError
from nbconvert import HTMLExporter
from traitlets.config import Config

CELL_TIMEOUT_S = 120
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def main(source: Path, target: Path) -> int:
    """Execute `source`, write it as HTML to `target`, and return the exit status."""
    notebook = nbformat.read(source, as_version=4)
    with tempfile.TemporaryDirectory(prefix="nb-kernel-") as place:
        failure = execute(notebook, source.parent, Path(place))
    for text in plain_outputs(notebook):
        print(text, end="\n\n")
    html, _ = HTMLExporter().from_notebook_node(notebook)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(html, encoding="utf-8")
    print(f"{source.name} as executed: {target}")
    if failure is not None:
        print(f"{source.name} failed: {_ANSI.sub('', str(failure))}", file=sys.stderr)
        return 1
    return 0


def execute(
    notebook: nbformat.NotebookNode, folder: Path, sockets: Path
) -> CellControlSignal | CellExecutionError | DeadKernelError | None:
    """Execute the notebook in `folder`, and return what ended it before its last cell."""
    client = NotebookClient(
        notebook,
        config=without_ports(sockets),
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        # Its warnings are about the connection, and irrelevant here.
        extra_arguments=["--log-level=ERROR"],
    )
    try:
        client.execute()
    except (CellControlSignal, CellExecutionError, DeadKernelError) as exc:
        return exc
    return None


def without_ports(place: Path) -> Config:
    """Return the configuration of a kernel that listens on sockets in the folder `place`.

    TCP ports are looked for before a kernel takes them: by then they may be another process's.
    """
    return Config(KernelManager={"transport": "ipc", "connection_file": str(place / "kernel.json")})


def plain_outputs(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """Yield the text of each output, in order, without terminal colours."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                text = "\n".join(output.traceback)
            elif output.output_type == "stream":
                text = output.text
            else:
                text = output.data.get("text/plain", "")
            if text := _ANSI.sub("", text).rstrip():
                yield text


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
