"""The notebooks of the examples run from top to bottom, say something, and are committed without output."""

import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed; pip install -e '.[test]'")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed; pip install -e '.[test]'")

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
WARNINGS_ARE_ERRORS = "import warnings\nwarnings.simplefilter('error')"
NO_MORE = "warnings.resetwarnings()"
"""For the kernel's own end."""


def printed(notebook):
    """Text of the cells' standard output."""
    outputs = (output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs)
    return "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")


def executed(path, folder, monkeypatch):
    """The notebook after a run in `folder`, in a kernel in which warnings are errors as they are here."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(WARNINGS_ARE_ERRORS))
    notebook.cells.append(nbformat.v4.new_code_cell(NO_MORE))
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def test_the_gradient_equals_a_finite_difference(tmp_path, monkeypatch):
    text = printed(executed(EXAMPLES / "08_threshold_gradient.ipynb", tmp_path, monkeypatch))
    said = text.splitlines()[-1].replace(",", "").split()
    assert said[0] == "gradient" and said[2:4] == ["finite", "difference"]
    assert float(said[1]) == pytest.approx(float(said[4]), rel=0.02)


@pytest.mark.slow
def test_the_heat_map_is_drawn(tmp_path, monkeypatch):
    text = printed(executed(EXAMPLES / "09_whatif_heatmap.ipynb", tmp_path, monkeypatch))
    assert "combinations can be met" in text
    assert (tmp_path / "whatif.png").stat().st_size > 1000


def test_a_cell_that_warns_is_seen(tmp_path, monkeypatch):
    """A kernel has filters of its own: without the first cell nothing would fail."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import warnings; warnings.warn('seen')")])
    nbformat.write(notebook, tmp_path / "warns.ipynb")
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="seen"):
        executed(tmp_path / "warns.ipynb", tmp_path, monkeypatch)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_committed_without_output_and_valid(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)
