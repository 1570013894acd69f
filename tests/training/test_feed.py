"""Images that are not on the device: the same run, wherever they lie."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobs import blobs
from PIL import Image
from training_runs import Listener, StopAfter, fit, recipe, same

from probmargin.core.errors import Interrupted, UsageError
from probmargin.data import folder
from probmargin.data.dataset import DataSet, ImageSet
from probmargin.data.files import FileImageSet
from probmargin.data.folder import load_folder
from probmargin.data.label_noise import label_noise
from probmargin.runs.run import open_run
from probmargin.training.feed import FileFeed, HostFeed, place, with_pixels

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The blobs as PNG files, 4 x 4."""
    root = tmp_path_factory.mktemp("pictures")
    data = blobs(96)
    for part, images in (("train", data.train), ("test", data.test)):
        for number, (pixels, label) in enumerate(zip(images.images, images.labels, strict=True)):
            place_ = root / part / str(int(label))
            place_.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[0].numpy()).save(place_ / f"{number:03d}.png")
    return root


def in_files(pictures: Path) -> DataSet:
    return load_folder(pictures, in_files=True)


@pytest.mark.parametrize("name", ["mail-at", "gairat"])
def test_a_run_is_the_same_wherever_its_images_lie(tmp_path: Path, pictures: Path, name: str) -> None:
    """Same order, augmentation and noise from the same seed: weights equal to the last bit."""
    weights = {}
    for asked, data in (
        ("device", load_folder(pictures, in_files=False)),
        ("host", load_folder(pictures, in_files=False)),
        ("files", in_files(pictures)),
    ):
        method = recipe(name, epochs=2)
        method = replace(method, augment=replace(method.augment, pad=1, flip=True))
        listener = Listener()
        weights[asked], path = fit(tmp_path / asked, method, data=data, reporter=listener, placement=asked)
        shares = [row.get("data_wait_share") for row in open_run(path).metrics]
        if asked == "device":
            assert shares == [None, None]
        else:
            assert all(share is not None and 0 <= share <= 1 for share in shares)
            assert any("training images stay in" in line for line in listener.said)
    assert same(weights["device"], weights["host"])
    assert same(weights["device"], weights["files"])


def test_an_interrupted_run_goes_on_with_the_right_images(tmp_path: Path) -> None:
    whole, _ = fit(tmp_path / "whole", recipe(), placement="host")
    with pytest.raises(Interrupted):
        fit(tmp_path / "cut", recipe(), placement="host", reporter=StopAfter(6))
    again, _ = fit(tmp_path / "cut", recipe(), placement="device", resume=True)
    assert same(whole, again)


def test_a_feed_gives_the_images_at_each_batchs_positions() -> None:
    train = blobs(40).train
    wanted = [torch.tensor(where) for where in ([3, 1, 4], [1, 5, 9], [2, 6], [5, 3, 5], [8, 9, 7], [9, 3, 2], [3])]
    feed = HostFeed(train, CPU, batch_size=3)
    found = list(feed.batches(wanted))
    assert len(found) == len(wanted)
    for positions, pixels in zip(wanted, found, strict=True):
        assert torch.equal(pixels, train.images[positions])
    assert feed.waited() >= 0
    assert feed.waited() == 0


def test_a_feed_that_is_left_in_the_middle_ends() -> None:
    train = blobs(40).train
    source = with_pixels(HostFeed(train, CPU, 2), [torch.tensor([0, 1])] * 50)
    assert next(source) is not None
    source.close()  # type: ignore[attr-defined]
    with pytest.raises(StopIteration):
        next(source)


def test_where_images_go(pictures: Path) -> None:
    data, unread = blobs(20).train, in_files(pictures).train
    assert place(data, CPU, "auto", 4)[1] is None
    assert isinstance(place(data, CPU, "host", 4)[1], HostFeed)
    assert isinstance(place(unread, CPU, "auto", 4)[1], FileFeed)
    read, feed = place(unread, CPU, "device", 4)
    assert feed is None
    assert not isinstance(read, FileImageSet)
    with pytest.raises(UsageError, match="folder:PATH"):
        place(data, CPU, "files", 4)


def test_images_in_files_are_the_images(pictures: Path) -> None:
    unread, read = in_files(pictures), load_folder(pictures, in_files=False)
    assert isinstance(unread.train, FileImageSet)
    assert not isinstance(unread.test, FileImageSet)
    with pytest.raises((NotImplementedError, RuntimeError)):
        unread.train.images.cpu()
    some = torch.tensor([5, 0, 17])
    part = unread.train.take(some)
    assert torch.equal(part.pixels(torch.arange(3)), read.train.images[some])
    assert torch.equal(part.labels, read.train.labels[some])
    assert torch.equal(part.floats(torch.tensor([1])), read.train.floats(some[1:2]))
    assert torch.equal(unread.train.to("cpu").images, read.train.images)
    assert unread.mean_std() == read.mean_std()
    assert unread.num_classes == 2
    noisy, wrong = label_noise(unread.train, "symmetric:0.5", 2, seed=1)
    assert isinstance(noisy, FileImageSet)
    assert int(wrong.sum()) == len(noisy) // 2


LEVELS = torch.randint(0, 256, (5000, 3, 1, 2), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_all_pictures_in_files_count_for_mean_and_deviation() -> None:
    """As they do in memory, so that --normalize and --resume give the same wherever they lie."""
    test = ImageSet(LEVELS[:2], torch.arange(2), torch.arange(2))
    read = ImageSet(LEVELS, torch.arange(5000) % 2, torch.arange(5000))
    files = tuple(Path(str(number)) for number in range(5000))
    unread = FileImageSet(
        LEVELS.to("meta"), read.labels, read.index, files=files, decode=lambda file: LEVELS[int(file.name)]
    )
    names = ("a", "b")
    assert DataSet("d", unread, test, names).mean_std() == DataSet("d", read, test, names).mean_std()


@pytest.mark.parametrize("placement", ["host", "files"])
def test_pictures_in_files_are_read_for_normalize_with_a_word(tmp_path: Path, pictures: Path, placement: str) -> None:
    listener, data = Listener(), load_folder(pictures, in_files=placement == "files")
    weights, _ = fit(tmp_path, recipe(epochs=1), data=data, reporter=listener, placement=placement, normalize=True)
    assert weights["0.mean"].flatten().tolist() == pytest.approx(data.mean_std()[0])
    said = f"reading {len(data.train)} training pictures for --normalize" in listener.said
    assert said == (placement == "files")


def test_another_file_changes_the_fingerprint(pictures: Path, tmp_path: Path) -> None:
    before = in_files(pictures).fingerprint
    assert before == in_files(pictures).fingerprint
    assert before == load_folder(pictures, in_files=False).fingerprint, "where images lie does not change them"
    file = next((pictures / "train" / "0").iterdir())
    kept = file.read_bytes()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (4, 4), dtype=np.uint8)).save(file, compress_level=0)
    assert in_files(pictures).fingerprint != before
    file.write_bytes(kept)


def test_a_folder_larger_than_memory_stays_in_its_files(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not isinstance(load_folder(pictures).train, FileImageSet)
    monkeypatch.setattr(folder, "free_memory", lambda: 1000)
    assert isinstance(load_folder(pictures).train, FileImageSet)


class Removes(Listener):
    """Takes a file away after the first epoch, as a clean-up would."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.kept = file.read_bytes()

    def epoch(self, metrics: dict[str, Any], epochs: int) -> None:
        self.file.unlink(missing_ok=True)


def test_a_picture_that_vanishes_while_training_ends_the_run_in_one_line(tmp_path: Path, pictures: Path) -> None:
    whole, _ = fit(tmp_path / "whole", recipe(epochs=3), data=in_files(pictures), placement="files")
    file = sorted((pictures / "train" / "0").iterdir())[2]
    reporter = Removes(file)
    try:
        with pytest.raises(UsageError) as caught:
            fit(tmp_path / "run", recipe(epochs=3), data=in_files(pictures), placement="files", reporter=reporter)
        assert not multiprocessing.active_children(), "the traceback is kept, and no worker with it"
    finally:
        file.write_bytes(reporter.kept)
    line = str(caught.value)
    assert line.startswith(f"cannot read the training image {file} any more ([Errno 2] No such file or directory")
    assert line.endswith("): put it back as it was and go on with --resume")
    assert "\n" not in line
    again, _ = fit(tmp_path / "run", recipe(epochs=3), data=in_files(pictures), placement="files", resume=True)
    assert same(whole, again)


def test_a_fault_in_a_worker_leaves_none_behind(pictures: Path) -> None:
    """Workers take no stop but the run's, so one that is left behind would keep its process from ending."""
    train = in_files(pictures).train
    assert isinstance(train, FileImageSet)
    with pytest.raises(RuntimeError, match="no disk"):
        list(FileFeed(replace(train, decode=fails), CPU).batches([torch.tensor([0, 1])] * 9))
    assert not multiprocessing.active_children()


def fails(_: Path) -> torch.Tensor:
    raise RuntimeError("no disk")


def started_on_files(pictures: Path, run: Path) -> subprocess.Popen[str]:
    """A run in a process group of its own that has workers and would go on for long."""
    options = f"--method at --batch-size 2 --model small-cnn --device cpu --epochs 5000 --out {run}"
    command = f"-m probmargin train --data folder:{pictures} --placement files {options}".split()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    while not list(run.glob("checkpoints/state-*.json")) or len(group(process.pid)) < 2:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    return process


def group(number: int) -> list[int]:
    """The processes of a group that still run."""
    found = []
    for folder_ in Path("/proc").glob("[0-9]*"):
        try:
            state, _, leader = (folder_ / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(leader) == number and state != "Z":
            found.append(int(folder_.name))
    return found


def ends(number: int) -> bool:
    """Whether a group is empty before long: a process closes its files before it is gone."""
    end = time.monotonic() + 60
    while group(number) and time.monotonic() < end:
        time.sleep(0.1)
    return not group(number)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_sent_to_the_workers_too_saves_the_state(tmp_path: Path, pictures: Path, number: signal.Signals) -> None:
    """As `timeout` and Ctrl-C send it: a worker that ended would take the run with it."""
    process = started_on_files(pictures, tmp_path / "run")
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "interrupted; state saved as" in err
    assert ends(process.pid)


@pytest.mark.slow
def test_a_run_whose_pictures_vanish_ends_with_its_workers(tmp_path: Path, pictures: Path) -> None:
    root = shutil.copytree(pictures, tmp_path / "pictures")
    process = started_on_files(root, tmp_path / "run")
    shutil.rmtree(root / "train" / "0")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert "Traceback" not in err
    assert "put it back as it was and go on with --resume" in err
    assert ends(process.pid)


@pytest.mark.slow
def test_workers_end_with_a_run_that_is_killed(tmp_path: Path, pictures: Path) -> None:
    process = started_on_files(pictures, tmp_path / "run")
    process.kill()
    process.communicate(timeout=60)
    assert ends(process.pid)


SLOW_START = """
import os, sys, time
from pathlib import Path
import torch
from probmargin.data.folder import load_folder
from probmargin.training import feed

work_for_run = feed._work_for_run

def slow_start(worker):
    run = os.getppid()
    print(os.getpid(), flush=True)
    while os.getppid() == run:
        time.sleep(0.01)
    work_for_run(worker)

feed._work_for_run = slow_start
source = feed.FileFeed(load_folder(Path(sys.argv[1]), in_files=True).train, torch.device("cpu"))
next(source.batches([torch.tensor([0])]))
"""


ANY_START = """
import multiprocessing, sys
from pathlib import Path
import torch
from probmargin.data.folder import load_folder
from probmargin.training.feed import FileFeed

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[2])
    train = load_folder(Path(sys.argv[1]), in_files=True).train
    (found,) = FileFeed(train, torch.device("cpu")).batches([torch.tensor([3, 5])])
    assert torch.equal(found, train.take(torch.tensor([3, 5])).pixels(torch.arange(2)))
"""


@pytest.mark.parametrize("way", ["forkserver", "spawn"])
def test_workers_serve_however_python_starts_them(pictures: Path, tmp_path: Path, way: str) -> None:
    """The parent of a process that a fork server starts is not its run."""
    script = tmp_path / "script.py"
    script.write_text(ANY_START, encoding="utf-8")
    result = subprocess.run([sys.executable, script, pictures, way], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_a_worker_that_starts_while_its_run_is_killed_ends(pictures: Path) -> None:
    """Whoever is its parent by then is not its run."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_START, str(pictures)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert int(process.stdout.readline()) in group(process.pid)
    process.kill()
    try:
        process.communicate(timeout=60)
        assert ends(process.pid)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compile_mode", ["default", "off"])
def test_on_cuda_a_run_is_the_same_wherever_its_images_lie(
    tmp_path: Path, compile_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    weights, listener = [], Listener()
    for asked in ("device", "host"):
        found, path = fit(
            tmp_path / asked,
            recipe(epochs=2),
            reporter=listener,
            device="cuda",
            precision="fp32",
            compile=compile_mode,
            placement=asked,
        )
        weights.append(found)
        assert (open_run(path).metrics[-1].get("data_wait_share") is None) == (asked == "device")
    assert not [line for line in listener.said if "fast path is off" in line]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, msg=name)
