"""Runs notebooks and stores what they print and draw: python notebooks/renew.py [FOLDER]

The notebooks beside this file are executed where they lie and written back, or to FOLDER.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a fresh kernel, without times and versions of machines."""
    book = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(HERE)}}
    client = NotebookClient(
        book, timeout=200, kernel_name="python3", resources=place, record_timing=False
    )
    client.execute()
    book.metadata["language_info"] = {"name": "python"}
    return book


def main() -> None:
    """Execute every notebook; a failing cell ends the command with its error."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for path in sorted(HERE.glob("*.ipynb")):
        print(path.name, file=sys.stderr)
        nbformat.write(executed(path), target / path.name)


if __name__ == "__main__":
    main()
