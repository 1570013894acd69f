"""The report and watch commands on real runs: pages, pictures, commands that work, wrong use, TensorBoard, the demo."""

import base64
import io
import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]
from training_runs import StopAfter

from probmargin import cli
from probmargin.core.errors import Interrupted
from probmargin.data.digits import load_digits
from probmargin.evaluation.subject import EvaluationRequest, evaluate_subject
from probmargin.experiments import demo
from probmargin.experiments.gallery import Choice, make_gallery
from probmargin.experiments.grid import full_recipe
from probmargin.experiments.report import ReportRequest, find_published, gather
from probmargin.experiments.table2 import TABLE2
from probmargin.methods.method import Method
from probmargin.methods.resolve import resolve
from probmargin.reporting.folder import Folder, read_folder
from probmargin.reporting.page.curves import charts
from probmargin.reporting.page.data import Picture
from probmargin.runs.run import open_run
from probmargin.training.progress import Reporter
from probmargin.training.request import TrainRequest
from probmargin.training.train import train

SHORT = {"attack.num_steps": "2", "attack.eps": "0.05"}


def short(method: str = "mail-at", epochs: int = 3) -> Method:
    return resolve(method, data="digits", epochs=epochs, settings=SHORT)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short runs on digits, judged; the second with everything a run can keep."""
    folder = tmp_path_factory.mktemp("runs")
    data = load_digits()
    shared: dict[str, Any] = {"model": "small-cnn", "seed": 0, "device": "cpu"}
    everything: dict[str, Any] = {
        "dynamics": True,
        "validation": 60,
        "validation_every": 1,
        "monitor": "pgd-2:20",
        "monitor_every": 1,
    }
    train(short("at", 2), data, TrainRequest(out=folder / "plain", **shared), Reporter(quiet=True))
    request = TrainRequest(out=folder / "full", label_noise="symmetric:0.2", **shared, **everything)
    train(short(), data, request, Reporter(quiet=True))
    return folder


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Runs the command line in this process: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROBMARGIN_DATA", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["probmargin", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_page_of_two_runs(runs: Path, program: Any, tmp_path: Path) -> None:
    copies = [Path(shutil.copytree(runs / name, tmp_path / name)) for name in ("plain", "full")]
    for copy in copies:
        assert program("evaluate", str(copy), "--attacks", "nat,pgd-2", "--num-examples", "40")[0] == 0
    code, said, _ = program("report", "plain", "full", "-o", "pages/two.html")
    assert code == 0
    assert re.search(r"report on 2 runs: pages/two.html \(0\.\d\d MB\)", said)
    text = (tmp_path / "pages" / "two.html").read_text(encoding="utf-8")
    results = json.loads((copies[1] / "evaluation.json").read_text())
    assert f"{100 * results['pgd-2']['robust_accuracy']:.2f}%" in text
    assert text.count('<ul class="gallery">') == 2
    assert "of the labels were made wrong on purpose" in text
    assert "probmargin report plain full -o pages/two.html" in text


def test_a_page_of_a_model_that_was_not_trained_here_and_of_the_run_that_came_of_it(
    runs: Path, program: Any, tmp_path: Path
) -> None:
    shutil.copytree(runs / "plain", tmp_path / "after")
    asked = ("--attacks", "nat,pgd-2", "--num-examples", "40")
    assert program("export", "after", "--format", "safetensors", "-o", "given.safetensors")[0] == 0
    weights = ("--model", "small-cnn", "--checkpoint", "given.safetensors", "--data", "digits", "--eps", "0.05")
    assert program("evaluate", *weights, *asked, "--out", "before.json")[0] == 0
    assert program("evaluate", "after", *asked)[0] == 0
    found = json.loads((tmp_path / "before.json").read_text(encoding="utf-8"))
    found |= {"weights": "of another model", "data_fingerprint": "classes in another order"}
    judged = tmp_path / "after" / "evaluation.json"
    order = {"data_as_read": found["data_fingerprint"]}
    judged.write_text(json.dumps({**json.loads(judged.read_text(encoding="utf-8")), **order}), encoding="utf-8")
    found["pgd-2"] |= {"correct": "1" * 10 + "0" * 30, "robust_accuracy": 0.25}
    (tmp_path / "before.json").write_text(json.dumps(found), encoding="utf-8")
    code, said, _ = program("report", "before.json", "after", "-o", "both.html")
    assert code == 0
    assert "report on 1 run and 1 file: both.html" in said
    text = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "small-cnn, judged on digits; before.json says nothing of how it was trained." in text
    held = json.loads((tmp_path / "after" / "evaluation.json").read_text())["pgd-2"]["correct"]
    only = sum(pair == ("1", "0") for pair in zip(held, found["pgd-2"]["correct"], strict=True))
    row = re.search(r'<tr><th scope="row">PGD-2</th>(.*?)</tr>', text, re.DOTALL)
    assert row is not None
    assert re.findall(r'<td class="n">([^ <]+)', row[1])[:2] == ["25.00%", f"{100 * held.count('1') / 40:.2f}%"]
    assert f'<td class="n">{only}</td>' in row[1]
    for section in ("curves", "gallery", "weights", "examples", "audit", "recipe"):
        inside = re.search(rf'<section id="{section}".*?</section>', text, re.DOTALL)
        assert inside is not None
        assert "before" not in inside[0].replace("before and after", ""), section
        is_named = section in ("gallery", "weights", "examples", "audit", "recipe")
        assert ('swatch s1" aria-hidden="true"></span>after' in inside[0]) is is_named, "in its own colour"
    assert program("report", "before.json", "-o", "alone.html")[0] == 0
    alone = (tmp_path / "alone.html").read_text(encoding="utf-8")
    sections = re.findall(r'<section id="([a-z]+)"', alone)
    assert sections == ["summary", "results", "gap", "classes", "confusion", "about"]
    assert "training time" not in alone
    assert "of another model" in alone, "its weights, in the facts"


def pixels_of(picture: Picture) -> torch.Tensor:
    """A picture of the page as the model would see it."""
    image = Image.open(io.BytesIO(base64.b64decode(picture.source.partition(",")[2])))
    return torch.from_numpy(np.array(image, dtype=np.float32))[None] / 255


def test_the_gallery_is_what_the_model_says(runs: Path) -> None:
    run, data = open_run(runs / "full"), load_digits()
    gallery = make_gallery(run, data, {"norm": "Linf", "eps": 0.1}, Choice(6), "cpu")
    assert len(gallery.samples) == 6
    assert gallery.attack == "PGD-20 (Linf eps 0.1)"
    places = [sample.place for sample in gallery.samples]
    assert places == sorted(places)
    probs = run.model(data.test.take(places).floats()).detach().softmax(1)
    for sample, row in zip(gallery.samples, probs, strict=True):
        assert sample.predicted_nat == data.classes[int(row.argmax())]
        assert sample.confidence_nat == pytest.approx(float(row.max()), abs=1e-5)
        assert sample.label == data.classes[int(data.test.labels[sample.place])]
    shown = torch.stack([pixels_of(sample.adversarial) for sample in gallery.samples])
    assert float((shown - data.test.take(places).floats()).abs().max()) <= 0.1 + 1 / 255
    for sample, row in zip(gallery.samples, run.model(shown).detach().softmax(1), strict=True):
        assert sample.confidence_adv == pytest.approx(float(row[data.classes.index(sample.predicted_adv)]), abs=0.02)
    again = make_gallery(run, data, {"norm": "L2", "eps": 0.5}, Choice(6, (4, 2)), "cpu")
    assert [sample.place for sample in again.samples] == [4, 2]


def test_both_runs_show_the_same_test_images(runs: Path) -> None:
    reports = gather(ReportRequest(runs=(runs / "plain", runs / "full"), images=3), lambda _: None)
    first, second = ([sample.place for sample in report.gallery.samples] for report in reports)
    assert first == second
    assert len(first) == 3


def test_wrong_labels_and_pictures_belong_to_the_examples(runs: Path) -> None:
    report = gather(ReportRequest(runs=(runs / "full",), images=2), lambda _: None)[0]
    assert report.dynamics is not None
    assert set(report.dynamics.shown()) == set(report.pictures)
    with np.load(runs / "full" / "label_noise.npz") as stored:
        labels = dict(zip(stored["index"].tolist(), stored["labels"].tolist(), strict=True))
    for entry in report.dynamics.largest:
        assert entry["class"] == str(labels[entry["index"]]), "as trained on, wrong or not"
    noise = report.dynamics.summary["noise"]
    assert 0.15 < noise["share_of_examples"] < 0.25


def test_runs_of_one_name_are_told_apart(runs: Path, tmp_path: Path) -> None:
    copies = [Path(shutil.copytree(runs / "plain", tmp_path / name / "same")) for name in "ab"]
    reports = gather(ReportRequest(runs=tuple(copies), images=0), lambda _: None)
    assert [report.label for report in reports] == [str(copy) for copy in copies]


def test_a_setting_that_came_later_has_its_default_in_an_older_run(runs: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs / "plain", tmp_path / "older"))
    recipe = json.loads((copy / "recipe.json").read_text())
    del recipe["optimizer"]
    (copy / "recipe.json").write_text(json.dumps(recipe))
    reports = gather(ReportRequest(runs=(runs / "plain", copy), images=0), lambda _: None)
    assert reports[1].folder.recipe == reports[0].folder.recipe


def test_data_that_is_away_is_named_with_the_command(runs: Path, program: Any, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs / "full", tmp_path / "away"))
    record = json.loads((copy / "record.json").read_text())
    (copy / "record.json").write_text(json.dumps(record | {"data": "cifar10"}))
    code, said, _ = program("report", "away")
    assert code == 0
    assert "away: no pictures: cifar10 needs a folder with its files" in said
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "probmargin report away -o report.html --data-dir DIR" in text
    assert "Effective sample size" in text, "everything that needs no data is there"
    (copy / "record.json").write_text(json.dumps(record | {"data_fingerprint": "other"}))
    assert "digits is not the data the run was trained on" in program("report", "away")[1]
    (copy / "record.json").write_text(json.dumps(record | {"data": "arrays"}))
    assert "away: no pictures: the data came from Python, and the run keeps none of it" in program("report", "away")[1]


def test_a_model_that_was_an_object_has_no_pictures(runs: Path, program: Any, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs / "plain", tmp_path / "own"))
    record = json.loads((copy / "record.json").read_text())
    (copy / "record.json").write_text(json.dumps(record | {"model_settings": None}))
    code, said, _ = program("report", "own")
    assert code == 0
    assert "was given as an object" in said


def test_the_command_a_page_gives_goes_on_with_the_run(program: Any, tmp_path: Path) -> None:
    watched: dict[str, Any] = {"validation": 50, "validation_every": 2, "monitor": "pgd-1:20", "monitor_every": 3}
    request = TrainRequest(out=Path("half"), model="small-cnn", seed=0, device="cpu", keep_epochs=(1, 3), **watched)
    with pytest.raises(Interrupted):
        train(short(epochs=4), load_digits(), request, StopAfter(30))
    assert program("report", "half", "--images", "2")[0] == 0
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Training is not finished: it stands after epoch 2 of 4" in text
    command = next(line for line in re.findall(r"<code>(probmargin train .*?)</code>", text) if "--resume" in line)
    assert "--monitor-every 3 --validation-every 2 --keep-epochs 1,3" in command
    code, said, errors = program(*shlex.split(command)[1:])
    assert (code, errors) == (0, "")
    assert "epoch 4/4" in said
    assert [row["epoch"] for row in read_folder("half").metrics if "validation" in row] == [1, 3]
    assert (tmp_path / "half" / "checkpoints" / "state-0003.json").exists()
    assert read_folder("half").is_finished
    again = next(line for line in re.findall(r"<code>(probmargin train .*?)</code>", text) if "--dynamics" in line)
    assert program(*shlex.split(again)[1:])[0] == 0
    assert (tmp_path / "half-dynamics" / "dynamics.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "nowhere"], "there is no run at nowhere"),
        (["report", "."], "is not a run's folder"),
        (["report", "run", "--images", "-1"], "--images must be 0 or more"),
        (["report", "run", "-o", "."], ". is a folder; name a file with -o, such as report.html"),
        (["report", *map(str, range(13))], "a page compares up to 12 runs, not 13"),
        (["watch", "nowhere"], "there is no run at nowhere"),
        (["watch", "run", "--every", "0"], "--every must be more than 0"),
    ],
)
def test_wrong_use_gets_one_line(program: Any, arguments: list[str], message: str) -> None:
    code, _, errors = program(*arguments)
    assert code == 2
    assert message in errors
    assert errors.count("\n") == 1


def test_options_are_pinned(program: Any) -> None:
    wanted = {"report": "--out --data-dir --images --device --help", "watch": "--every --once --help"}
    for name, options in wanted.items():
        found = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", program(name, "--help")[1]))
        assert found == set(options.split())


def test_watch_prints_one_frame(runs: Path, program: Any) -> None:
    code, said, _ = program("watch", str(runs / "full"), "--once")
    assert code == 0
    assert "full: mail-at, small-cnn on digits  epoch 3/3  finished" in said
    assert "effective sample size" in said


def published_for(evaluation: dict[str, Any] | None = None, **changes: Any) -> Any:
    recipe = full_recipe(TABLE2, next(row for row in TABLE2.rows if row.id == "mail-trades")).plain()
    folder = Folder(
        path=Path("a"),
        record={"data": "cifar10", "model": "resnet18"},
        recipe=recipe | changes,
        metrics=[],
        evaluation=evaluation,
    )
    return find_published(folder)


def test_another_yardstick_than_the_papers_is_said() -> None:
    same = {"norm": "Linf", "eps": 8 / 255, "test_images": 10000, "aa": {"num_examples": 10000}}
    assert published_for(same).judged_otherwise == ()
    other = published_for(same | {"eps": 1 / 255, "norm": "L2", "aa": {"num_examples": 1000}})
    assert other.judged_otherwise == (
        "the norm is L2, not Linf",
        "eps is 0.003922, not 0.03137",
        "aa saw 1,000 of 10,000 test images",
    )


def test_the_papers_row_is_found_by_method_data_and_model() -> None:
    exact = published_for()
    assert exact.numbers["aa"] == (50.6, 0.22)
    assert exact.numbers["nat"][0] == 81.84, "table 2 says more than table 1, which prints 80.49"
    assert exact.numbers["cw"][0] == 52.89
    assert exact.differences == exact.judged_otherwise == ()
    near = published_for(epochs=30)
    assert near.differences == ("epochs is 30, not 100",)
    far = Folder(path=Path("a"), record={"data": "digits", "model": "resnet18"}, recipe={"method": "at"}, metrics=[])
    assert find_published(far) is None


TAGS = {"attacked": "robust_accuracy", "clean": "natural_accuracy", "learning rate": "lr", "mean weight": "weight_mean"}


def test_tensorboard_holds_every_curve_of_the_page(runs: Path) -> None:
    events = EventAccumulator(str(runs / "full"), size_guidance={"histograms": 0, "scalars": 0})
    events.Reload()
    report = gather(ReportRequest(runs=(runs / "full",), images=0), lambda _: None)[0]
    groups = {"validation": "validation", "monitors": "monitors"}
    compared = 0
    for chart in charts([report]):
        for line in chart["series"]:
            name = TAGS.get(line["name"], line["name"].replace(" ", "_").lower())
            stored = events.Scalars(f"{groups.get(chart['id'], 'train')}/{name}")
            assert [event.step + 1 for event in stored] == line["x"]
            assert [event.value for event in stored] == pytest.approx(line["y"], rel=1e-4)
            compared += 1
    assert compared == 8
    assert report.dynamics is not None
    for name in ("safe", "boundary", "wrong"):
        values = [event.value for event in events.Scalars(f"areas/{name}")]
        assert values == pytest.approx(report.dynamics.summary["epochs"][name])
    for name, spread in (("margin", report.dynamics.margin), ("weight", report.dynamics.weight)):
        histograms = [event.histogram_value for event in events.Histograms(name)]
        assert [histogram.num for histogram in histograms] == [sum(row) for row in spread.counts]


def test_the_demo_ends_with_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def quick(name: str, **where: Any) -> Method:
        return replace(short(name, 2), burn_in_epochs=1) if "model" in where else resolve(name, **where)

    monkeypatch.setattr(demo, "resolve", quick)
    monkeypatch.setattr(demo, "ATTACKS", ("nat", "pgd-20", "cw"))
    said: list[str] = []
    demo.run_demo(tmp_path / "demo", 1, said.append)
    page = tmp_path / "demo" / "report.html"
    assert any(f"report on 2 runs: {page}" in line for line in said)
    text = page.read_text(encoding="utf-8")
    assert "mail-trades" in text
    assert text.count('<ul class="strip">') >= 4, "weights of single images are kept"
    record = open_run(tmp_path / "demo" / "at").record
    evaluate_subject(EvaluationRequest(run=tmp_path / "demo" / "at", attacks=("fgsm",), eps="0.15"), said.append)
    assert "kept from before, under the same conditions: nat, pgd-20, cw" in said
    assert {"versions", "hardware", "commit"} <= record["evaluation"].keys()
