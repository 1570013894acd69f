"""Nothing a user's file holds is run, written elsewhere or shown unescaped."""

import ast
import io
import pickle
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from program import Program, contents, program as program
from safetensors.torch import save_file

from probmargin.core.errors import UsageError
from probmargin.data.cifar import LAYOUTS, load_cifar
from probmargin.data.npz import load_npz
from probmargin.engine.checkpoints import load_weights
from probmargin.reporting.render_latex import latex_text

SOURCES = sorted((Path(__file__).resolve().parents[2] / "src" / "probmargin").rglob("*.py"))


class Evil:
    """Writes a file when it is unpickled by anything that trusts it."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return Path.write_text, (self.proof, "run")  # type: ignore[return-value]


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    return tmp_path / "proof"


def test_the_bait_works(proof: Path) -> None:
    pickle.loads(pickle.dumps(Evil(proof)))
    assert proof.exists()


def test_npz_files_with_objects_are_refused(tmp_path: Path, proof: Path) -> None:
    baited = np.array([Evil(proof)] * 4, dtype=object)
    fine: dict[str, Any] = {"x_train": np.zeros((4, 8, 8)), "x_test": np.zeros((4, 8, 8)), "y_test": np.arange(4)}
    np.savez(tmp_path / "d.npz", y_train=baited, **fine)
    with pytest.raises(UsageError, match="pickled objects, which are refused"):
        load_npz(tmp_path / "d.npz")
    (tmp_path / "bare.npz").write_bytes(pickle.dumps(Evil(proof)))
    with pytest.raises(UsageError, match="refused, or is no"):
        load_npz(tmp_path / "bare.npz")
    assert not proof.exists()


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.bin", "w.safetensors"])
def test_weights_with_code_are_refused(tmp_path: Path, proof: Path, name: str) -> None:
    torch.save({"conv1.weight": torch.zeros(1), "extra": Evil(proof)}, tmp_path / name)
    with pytest.raises(UsageError, match="pickled code is refused"):
        load_weights(tmp_path / name)
    (tmp_path / name).write_bytes(pickle.dumps(Evil(proof)))
    with pytest.raises(UsageError, match="pickled code is refused"):
        load_weights(tmp_path / name)
    assert not proof.exists()


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("bare", [False, True])
def test_refused_weights_are_one_plain_line_without_advice_to_trust_them(
    tmp_path: Path, proof: Path, recwarn: pytest.WarningsRecorder, bare: bool, protocol: int
) -> None:
    file = tmp_path / "w.pt"
    if bare:
        file.write_bytes(pickle.dumps(Evil(proof), protocol=protocol))
    else:
        torch.save({"extra": Evil(proof)}, file, pickle_protocol=protocol)
    with pytest.raises(UsageError) as caught:
        load_weights(file)
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 200 + len(str(file))
    assert not any(word in text for word in ("weights_only", "trust", "torch.load", "PyTorch 2"))
    assert not recwarn.list
    assert not proof.exists()


@pytest.mark.parametrize("packed", [False, True])
def test_cifar_files_with_code_are_refused(tmp_path: Path, proof: Path, packed: bool) -> None:
    layout = LAYOUTS["cifar10"]
    content = pickle.dumps({b"data": Evil(proof)}, protocol=2)
    if packed:
        with tarfile.open(tmp_path / layout.remote.file_name, "w:gz") as tar:
            for name in layout.files:
                member = tarfile.TarInfo(f"{layout.folder}/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    else:
        (tmp_path / layout.folder).mkdir()
        for name in layout.files:
            (tmp_path / layout.folder / name).write_bytes(content)
    with pytest.raises(UsageError, match="tries to run code"):
        load_cifar("cifar10", tmp_path)
    assert not proof.exists()


def test_archives_write_nowhere(tmp_path: Path) -> None:
    """Members that climb out, links and all: an archive is read in memory, and no file appears."""
    inside = tmp_path / "data"
    inside.mkdir()
    layout = LAYOUTS["cifar10"]
    with tarfile.open(inside / layout.remote.file_name, "w:gz") as tar:
        for name in ("../escaped", "/tmp/probmargin-escaped", f"{layout.folder}/../../escaped", "fine"):
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"evil"))
        link = tarfile.TarInfo(f"{layout.folder}/data_batch_1")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    before = contents(tmp_path)
    with pytest.raises(UsageError, match="is missing"):
        load_cifar("cifar10", inside)
    with zipfile.ZipFile(inside / "d.npz", "w") as file:
        file.writestr("../escaped.npy", b"evil")
    before["data/d.npz"] = contents(tmp_path)["data/d.npz"]
    with pytest.raises(UsageError, match="lacks x_train"):
        load_npz(inside / "d.npz")
    assert contents(tmp_path) == before
    assert not Path("/tmp/probmargin-escaped").exists()


def test_no_code_unpacks_an_archive() -> None:
    for name, node in calls():
        assert name.rpartition(".")[2] not in ("extractall", "unpack_archive"), where(node)


def test_an_own_model_imports_what_it_is_told_and_says_so(tmp_path: Path) -> None:
    """Files here with the names of packages that are imported later do not take their place."""
    bait = "from pathlib import Path\nPath('proof').write_text('run')\n"
    for name in ("safetensors", "tensorboard", "sklearn", "matplotlib", "scipy", "PIL", "other"):
        (tmp_path / f"{name}.py").write_text(bait, encoding="utf-8")
    (tmp_path / "told.py").write_text(
        "import torch\ndef build(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n",
        encoding="utf-8",
    )
    train = ("train", "--data", "digits", "--model", "told:build", "--epochs", "1", "--method", "at", "--out", "run")
    # -P is what an installed command does: the current folder is not searched before we ask for it.
    command = [sys.executable, "-P", "-m", "probmargin", *train, "--device", "cpu", "--set", "attack.num_steps=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"model told:build is imported from {tmp_path / 'told.py'}" in done.stdout
    assert not (tmp_path / "proof").exists()


def test_a_model_of_ours_imports_nothing_from_here(program: Program, tmp_path: Path) -> None:
    for name in ("resnet18", "small_cnn", "wrn"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    result = program("evaluate", "--model", "small-cnn", "--data", "digits", "--attacks", "nat", "--num-examples", "4")
    assert result.code == 0, result.err
    assert "imported from" not in result.out


def test_a_recipe_is_data(program: Program) -> None:
    """Expressions are not numbers, and names are not looked up outside the registries."""
    train = ("train", "--data", "digits", "--model", "small-cnn", "--out", "run")
    program.refuses("is not a number", *train, "--set", "attack.eps=__import__('os').getpid()")
    program.refuses("is not a number", *train, "--set", "attack.eps=2**3")
    program.refuses("unknown attack", *train, "--set", "attack=os.system")


def test_latex_escapes_everything_that_is_special() -> None:
    typed = r"\input{/etc/passwd} 50% & $x_1^2$ #~ {a}"
    escaped = latex_text(typed)
    assert escaped == (
        r"\textbackslash{}input\{/etc/passwd\} 50\% \& \$x\_1\textasciicircum{}2\$ \#\textasciitilde{} \{a\}"
    )
    assert latex_text("81.84 ± 0.18") == r"81.84 $\pm$ 0.18"


def test_a_run_called_by_markup_stays_text(program: Program) -> None:
    """Names of runs and classes go into a page and a card."""
    name = "<script>alert(1)</script>"
    quick = ("--data", "digits", "--model", "small-cnn", "--method", "at", "--epochs", "1", "--device", "cpu")
    assert program("train", *quick, "--set", "attack.num_steps=1", "--out", name.replace("/", "-")).code == 0
    folder = name.replace("/", "-")
    assert program("report", folder, "-o", "page.html").code == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert "<script>alert(1)" not in page
    assert "alert(1)" in page
    program("export", folder, "--format", "safetensors", "-o", "m.safetensors", "--num-examples", "4")
    assert "<script>" not in Path("m.safetensors.card.md").read_text(encoding="utf-8")


FORBIDDEN = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "os.execv",
    "os.execvp",
    "os.spawnv",
    "pickle.load",
    "pickle.loads",
    "marshal.load",
    "marshal.loads",
    "shelve.open",
    "yaml.load",
    "joblib.load",
    "subprocess.getoutput",
    "tempfile.mktemp",
}
"""What no module calls; `compile` and `eval` as methods of a model are something else."""


def calls() -> list[tuple[str, Any]]:
    """Every call in the package by its dotted name, with the node and its file."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                found.append((ast.unparse(node.func), (path, node)))
    return found


def where(found: tuple[Path, ast.Call]) -> str:
    return f"{found[0].name}, line {found[1].lineno}: {ast.unparse(found[1])[:80]}"


def keywords(call: ast.Call) -> dict[str, Any]:
    return {str(word.arg): getattr(word.value, "value", None) for word in call.keywords}


def test_there_is_source_to_look_at() -> None:
    assert len(SOURCES) > 100
    assert len(calls()) > 1000


def test_no_eval_no_exec_no_shell_no_pickle() -> None:
    for name, found in calls():
        assert name not in FORBIDDEN, where(found)
        assert not keywords(found[1]).get("shell"), where(found)
        if name in ("np.load", "numpy.load"):
            assert keywords(found[1]).get("allow_pickle") is False, where(found)
        if name == "torch.load":
            assert keywords(found[1]).get("weights_only") is True, where(found)
        if name in ("subprocess.run", "subprocess.Popen", "subprocess.check_output"):
            assert not isinstance(found[1].args[0], ast.Constant | ast.JoinedStr), where(found)


def test_only_the_restricted_reader_is_a_pickle() -> None:
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert "import pickle" not in text or path.name == "cifar.py", path
        assert "allow_pickle=True" not in text, path


def test_checkpoints_of_runs_hold_no_pickle(program: Program) -> None:
    quick = ("--data", "digits", "--model", "small-cnn", "--method", "at", "--epochs", "1", "--device", "cpu")
    program("train", *quick, "--set", "attack.num_steps=1", "--out", "run", "--dynamics")
    for path in Path("run").rglob("*"):
        assert path.suffix in ("", ".json", ".jsonl", ".safetensors", ".npz") or "tfevents" in path.name, path
    save_file({"a": torch.zeros(1)}, "a.safetensors")
    assert list(load_weights(Path("a.safetensors"))) == ["a"]
