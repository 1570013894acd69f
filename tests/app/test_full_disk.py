"""A disk that fills up, and a checkpoint that was cut off: one line, and the state before it is as it was."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from program import Program, program as program

from probmargin.engine import checkpoints
from probmargin.engine.files import append_json_line, written_aside
from probmargin.runs.run import open_run

TRAIN = ("train", "--data", "digits", "--model", "small-cnn", "--method", "at", "--device", "cpu", "--epochs", "8")
QUICK = ("--set", "attack.num_steps=1")
KEPT = ("--keep-epochs", "1,2,3,4,5,6,7")


def mounted(place: Path, size: str) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    return (
        shutil.which("mount") is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes, where this process may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    if not mounted(place, "2m"):
        pytest.skip("needs the right to mount a file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)


@pytest.mark.slow
def test_a_real_disk_that_fills_up(small_disk: Path) -> None:
    """Three states of half a megabyte fit; the fourth does not. With room again, the run goes on."""
    command = [sys.executable, "-m", "probmargin", *TRAIN, *QUICK, *KEPT, "--out", str(small_disk / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.startswith("probmargin: No space left on device: ")
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    run = open_run(small_disk / "run")
    kept = len(run.states())
    assert kept >= 2
    for path in run.states():
        checkpoints.load(path)
    assert not list((small_disk / "run").rglob("*.part"))
    subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True, capture_output=True)
    again = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert f"going on from state-{kept:04d}" in again.stdout
    assert len(run.metrics) == 8


def test_a_full_disk_is_said_with_the_file_that_was_written(tmp_path: Path) -> None:
    """What writes to an open file, as zip archives do, has no name for the system to give."""
    with pytest.raises(OSError, match="No space left") as error, written_aside(tmp_path / "dynamics.npz"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert error.value.filename == str(tmp_path / "dynamics.npz")
    if Path("/dev/full").exists():
        with pytest.raises(OSError, match="No space left") as error:
            append_json_line(Path("/dev/full"), {"epoch": 0})
        assert error.value.filename == "/dev/full"


def test_no_room_for_the_third_state(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    written = checkpoints.write_tensors

    def write(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
        written(path, tensors, metadata)
        if "state-0003" in path.name:
            path.write_bytes(path.read_bytes()[:1000])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(checkpoints, "write_tensors", write)
    result = program(*TRAIN, *QUICK, *KEPT, "--out", "run")
    assert result.code == 1
    assert result.err.startswith("probmargin: No space left on device: ")
    assert result.err.strip().endswith("; make room and start again, with --resume")
    assert len(result.err.strip().splitlines()) == 1
    assert [path.name for path in open_run("run").states()] == ["state-0001", "state-0002"]
    assert not list(Path("run").rglob("*.part"))
    assert program("evaluate", "run", "--attacks", "nat", "--num-examples", "10").code == 0


def test_an_export_onto_a_full_disk_leaves_nothing(program: Program, small_disk: Path) -> None:
    assert program(*TRAIN, *QUICK, "--epochs", "1", "--out", "run").code == 0
    (small_disk / "ballast").write_bytes(bytes(1_900_000))
    done = program("export", "run", "--format", "safetensors", "-o", str(small_disk / "m.safetensors"))
    assert done.code == 1, done.out
    assert done.err.startswith("probmargin: No space left on device: ")
    assert len(done.err.strip().splitlines()) == 1, done.err
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]


def test_a_half_written_checkpoint_gives_way_to_the_one_before(program: Program) -> None:
    arguments = (*TRAIN, *QUICK, "--keep-epochs", "1,2,3", "--epochs", "3", "--out", "run")
    program(*arguments)
    before = open_run("run").model.state_dict()
    last = Path("run/checkpoints/state-0003.safetensors")
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    judged = program("evaluate", "run", "--attacks", "nat", "--num-examples", "10")
    assert judged.code == 0
    assert "state-0003.safetensors is damaged: its checksum differs; the state before it is used" in judged.out
    resumed = program(*arguments, "--resume")
    assert resumed.code == 0, resumed.err
    assert "is damaged: its checksum differs; the state before it is used" in resumed.out
    assert "going on from state-0002" in resumed.out
    after = open_run("run").model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
