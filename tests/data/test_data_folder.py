"""Folders of images: layouts, formats, sizes, and what is refused."""

import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from probmargin.core.errors import UsageError
from probmargin.data.files import FileImageSet
from probmargin.data.folder import load_folder
from probmargin.data.loader import load


def paint(path: Path, level: int = 0, size: tuple[int, int] = (9, 7), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(level).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(random).convert(mode).save(path)


def gallery(root: Path, count: int = 5, classes: tuple[str, ...] = ("cat", "dog")) -> None:
    for number, name in enumerate(classes):
        for position in range(count):
            paint(root / name / f"{position:02d}.png", 100 * number + position)


def pixels(path: Path, mode: str = "RGB") -> torch.Tensor:
    array = np.array(Image.open(path).convert(mode))
    return torch.from_numpy(array[None] if mode == "L" else array.transpose(2, 0, 1).copy())


def test_train_and_test_folders(tmp_path: Path) -> None:
    gallery(tmp_path / "train", 3)
    gallery(tmp_path / "test", 2)
    data = load(f"folder:{tmp_path}")
    assert data.classes == ("cat", "dog")
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert (data.image_size, data.channels, len(data.test)) == ((7, 9), 3, 4)
    files = [tmp_path / "train" / name / f"0{i}.png" for name in ("cat", "dog") for i in range(3)]
    assert torch.equal(data.train.images, torch.stack([pixels(file) for file in files]))


def test_one_folder_is_split_for_good(tmp_path: Path) -> None:
    gallery(tmp_path, 10)
    data = load_folder(tmp_path)
    assert (len(data.train), len(data.test)) == (16, 4)
    assert torch.bincount(data.test.labels).tolist() == [2, 2]
    assert sorted([*data.train.index.tolist(), *data.test.index.tolist()]) == list(range(20))
    for part in (data.train, data.test):
        for image, index in zip(part.images, part.index.tolist(), strict=True):
            file = tmp_path / ("cat", "dog")[index // 10] / f"{index % 10:02d}.png"
            assert torch.equal(image, pixels(file))
    assert torch.equal(load_folder(tmp_path).test.index, data.test.index)


def held_out(root: Path) -> set[str]:
    """CLASS/NAME of the test pictures."""
    files = sorted(root.glob("*/*.png"))
    return {str(files[index].relative_to(root)) for index in load_folder(root).test.index.tolist()}


def test_a_picture_that_is_added_or_removed_moves_one_other_at_most(tmp_path: Path) -> None:
    gallery(tmp_path, 23, classes=("cat", "dog", "eel"))
    before = held_out(tmp_path)
    arrived = 0
    for number in range(20):
        new = tmp_path / "dog" / f"new-{number}.png"
        shutil.copy(tmp_path / "dog" / "00.png", new)
        after = held_out(tmp_path)
        moved = (before ^ after) - {f"dog/{new.name}"}
        assert len(moved) <= 1
        assert all(name.startswith("dog/") for name in moved)
        arrived += f"dog/{new.name}" in after
        new.unlink()
    assert 0 < arrived < 12
    assert held_out(tmp_path) == before


def test_the_split_hangs_on_names_alone_and_keeps_shares(tmp_path: Path) -> None:
    gallery(tmp_path / "a", 30, classes=("cat", "dog"))
    shutil.copytree(tmp_path / "a", tmp_path / "elsewhere")
    for file in (tmp_path / "a" / "cat").iterdir():
        shutil.copy(tmp_path / "a" / "dog" / "00.png", file)
    assert held_out(tmp_path / "a") == held_out(tmp_path / "elsewhere")
    cats, dogs = ({name[4:] for name in held_out(tmp_path / "a") if name.startswith(kind)} for kind in ("cat", "dog"))
    assert (len(cats), len(dogs)) == (6, 6)
    assert cats != dogs
    # Frozen: another draw would make test pictures of runs that are there into training pictures.
    gallery(tmp_path / "b", 10)
    assert held_out(tmp_path / "b") == {"cat/06.png", "cat/09.png", "dog/06.png", "dog/09.png"}


@pytest.mark.parametrize(("count", "held"), [(2, 1), (3, 1), (7, 1), (8, 2), (25, 5)])
def test_every_class_has_both_parts(tmp_path: Path, count: int, held: int) -> None:
    gallery(tmp_path, count)
    data = load_folder(tmp_path)
    assert torch.bincount(data.test.labels).tolist() == [held, held]
    assert data.class_counts() == (count - held, count - held)


@pytest.mark.parametrize("apart", [False, True])
def test_the_first_test_images_are_of_every_class(tmp_path: Path, apart: bool) -> None:
    """Commands that judge a part of the test set take its first images."""
    for root in (tmp_path / "train", tmp_path / "test") if apart else (tmp_path,):
        gallery(root, 20 if root.name == "test" else 100, classes=("cat", "dog", "eel"))
    data = load_folder(tmp_path)
    assert set(data.test.labels[:12].tolist()) == {0, 1, 2}
    again = load_folder(tmp_path, in_files=True)
    assert torch.equal(again.test.index, data.test.index)
    assert torch.equal(again.test.images, data.test.images)
    assert again.train.index.tolist() == sorted(again.train.index.tolist())
    names = ("cat", "dog", "eel")
    for image, index in zip(data.test.images, data.test.index.tolist(), strict=True):
        each = 20 if apart else 100
        file = (tmp_path / "test" if apart else tmp_path) / names[index // each] / f"{index % each:02d}.png"
        assert torch.equal(image, pixels(file))


def test_pictures_in_files_are_read_again_for_the_fingerprint_only_where_one_may_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, cache, read = tmp_path / "pictures", tmp_path / "cache", list[int]()
    gallery(root)
    picked = load_folder(root, in_files=True).train
    assert isinstance(picked, FileImageSet)
    file = picked.files[3]
    picture = Image.open(file).copy()
    picture.save(file, compress_level=0)
    whole = load_folder(root).fingerprint
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    own = FileImageSet.read

    def noted(images: FileImageSet, place: int) -> torch.Tensor:
        read.append(place)
        return own(images, place)

    monkeypatch.setattr(FileImageSet, "read", noted)

    def again(size: int | None = None) -> tuple[str, int]:
        data = load_folder(root, image_size=size, in_files=True)
        read.clear()
        return data.fingerprint, len(read)

    assert again() == (whole, 8)
    assert again() == (whole, 0)
    assert again(size=5)[1] == 8, "other pixels of the same files"
    file.touch()
    assert again() == (whole, 8)
    kept, before = file.read_bytes(), file.stat()
    picture.putpixel((0, 0), (1, 2, 3))
    picture.save(file, compress_level=0)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    changed, count = again()
    assert (changed != whole, count) == (True, 8), "its time was set back"
    file.write_bytes(kept)
    assert again() == (whole, 8)
    for version in ("PIL.__version__", "probmargin.data.files.__version__"):
        with monkeypatch.context() as patch:
            patch.setattr(version, "0")
            assert again() == (whole, 8), "another decoder"
    for place in (cache / "probmargin/fingerprints").iterdir():
        place.write_text("half")
    assert again() == (whole, 8)
    shutil.rmtree(cache)
    cache.write_text("a file")
    assert [again(), again()] == [(whole, 8), (whole, 8)], "nothing can be kept"


def test_a_fingerprint_is_made_without_a_home_and_never_kept_in_the_folder_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, home, here = tmp_path / "pictures", tmp_path / "home", tmp_path / "here"
    gallery(root)
    here.mkdir()
    monkeypatch.chdir(here)
    whole = load_folder(root).fingerprint
    monkeypatch.setenv("HOME", str(home))
    for chosen in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", chosen)
        assert load_folder(root, in_files=True).fingerprint == whole
        assert not list(here.iterdir())
    assert len(list((home / ".cache/probmargin/fingerprints").iterdir())) == 1

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert load_folder(root, in_files=True).fingerprint == whole
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert load_folder(root, in_files=True).fingerprint == whole
    assert len(list((tmp_path / "cache/probmargin/fingerprints").iterdir())) == 1


def test_a_picture_that_is_gone_is_named(tmp_path: Path) -> None:
    gallery(tmp_path)
    data = load_folder(tmp_path, in_files=True)
    shutil.rmtree(tmp_path / "cat")
    with pytest.raises(UsageError, match=r"cannot read the image .*cat.*No such file"):
        assert data.fingerprint


def test_every_format_and_nothing_else(tmp_path: Path) -> None:
    gallery(tmp_path, 2)
    for position, suffix in enumerate(("PNG", "jpg", "JPEG", "bmp", "gif", "webp")):
        paint(tmp_path / "cat" / f"9{position}.{suffix}")
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "cat" / "._00.png").write_text("no image either")
    (tmp_path / ".cache").mkdir()
    data = load_folder(tmp_path)
    assert len(data.train) + len(data.test) == 10


@pytest.mark.parametrize(
    ("odd", "asked", "want"),
    [
        ((9, 7), None, (7, 9)),
        ((10, 7), None, (32, 32)),
        ((9, 7), 12, (12, 12)),
        ((200, 100), 16, (16, 16)),
    ],
)
def test_sizes(odd: tuple[int, int], asked: int | None, want: tuple[int, int], tmp_path: Path) -> None:
    gallery(tmp_path)
    paint(tmp_path / "cat" / "zz.png", size=odd)
    assert load(f"folder:{tmp_path}", image_size=asked).image_size == want


@pytest.mark.parametrize(("side", "want"), [(64, 64), (65, 32)])
def test_a_common_size_is_kept_up_to_64(side: int, want: int, tmp_path: Path) -> None:
    for name in "ab":
        for position in range(2):
            paint(tmp_path / name / f"{position}.png", size=(side, side))
    assert load_folder(tmp_path).image_size == (want, want)


def test_resizing_averages_instead_of_skipping(tmp_path: Path) -> None:
    board = np.indices((64, 64)).sum(0) % 2 * 255
    for name in "ab":
        for position in range(2):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.fromarray(board.astype(np.uint8)).save(tmp_path / name / f"{position}.png")
    small = load_folder(tmp_path, image_size=8).train.images
    assert ((small.float() - 127.5).abs() < 12).all(), "a chequerboard must turn grey"


def test_grey_if_every_image_is(tmp_path: Path) -> None:
    for name in "ab":
        paint(tmp_path / name / "0.png", 1, mode="L")
        paint(tmp_path / name / "1.png", 2, mode="1")
    assert load_folder(tmp_path).channels == 1
    for number, mode in enumerate(("RGBA", "P", "LA", "CMYK")):
        paint(tmp_path / "b" / f"x{number}.{'jpg' if mode == 'CMYK' else 'png'}", mode=mode)
    assert load_folder(tmp_path).channels == 3


def test_a_palette_with_transparency_gives_no_warning(tmp_path: Path) -> None:
    gallery(tmp_path)
    image = Image.open(tmp_path / "cat" / "00.png").convert("P")
    image.save(tmp_path / "cat" / "00.png", transparency=bytes(range(256)))
    assert load_folder(tmp_path).channels == 3


def test_what_is_transparent_becomes_white(tmp_path: Path) -> None:
    """Black shapes on a clear ground would else be black all over."""
    gallery(tmp_path)
    clear = Image.new("RGBA", (9, 7), (0, 0, 0, 0))
    clear.putpixel((3, 2), (0, 0, 0, 255))
    clear.save(tmp_path / "cat" / "00.png")
    data = load_folder(tmp_path)
    both = torch.cat([data.train.images, data.test.images])
    dark = [image for image in both if (image == 255).sum() == 3 * (9 * 7 - 1)]
    assert len(dark) == 1
    assert dark[0][:, 2, 3].tolist() == [0, 0, 0]


def test_pictures_are_turned_as_a_camera_says(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        for number in range(3):
            paint(tmp_path / name / f"{number}.png", number, size=(9, 7))
            turned = Image.open(tmp_path / name / f"{number}.png").rotate(90, expand=True)
            exif = Image.Exif()
            exif[0x0112] = 6
            turned.save(tmp_path / name / f"{number}.png", exif=exif)
    data = load_folder(tmp_path)
    assert data.image_size == (7, 9)
    upright = Image.open(tmp_path / "cat" / "0.png").rotate(-90, expand=True)
    want = torch.from_numpy(np.array(upright).transpose(2, 0, 1).copy())
    assert any(torch.equal(image, want) for image in torch.cat([data.train.images, data.test.images]))
    assert not data.notes


@pytest.mark.parametrize("orientation", range(10))
def test_pictures_are_turned_every_way_a_camera_says(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            paint(tmp_path / part / name / "0.png", 3)
            Image.open(tmp_path / part / name / "0.png").copy().save(tmp_path / part / name / "0.png", exif=exif)
    with Image.open(tmp_path / "train" / "cat" / "0.png") as image:
        want = torch.from_numpy(np.array(ImageOps.exif_transpose(image)).transpose(2, 0, 1).copy())
    assert torch.equal(load_folder(tmp_path).train.images[0], want)


TEXT_AS_WIDTH = b"MM\0*\0\0\0\x08\0\x02\x01\0\0\x02\0\0\0\x03hi\0\0\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize(("exif", "turned"), [(TEXT_AS_WIDTH, True), (b"MM\0*\0", False)], ids=["text", "half"])
def test_a_picture_with_odd_exif_data_is_read(tmp_path: Path, exif: bytes, turned: bool, in_files: bool) -> None:
    """One camera writes text where a number belongs, another half a header; the pixels are fine."""
    for file in (tmp_path / part / name / "0.png" for part in ("train", "test") for name in ("cat", "dog")):
        paint(file, 3)
        Image.open(file).copy().save(file, exif=b"Exif\0\0" + exif)
    data = load_folder(tmp_path, in_files=in_files)
    want = pixels(file)
    assert torch.equal(data.test.images[0], want.rot90(-1, (1, 2)) if turned else want)
    assert torch.equal(data.train.pixels(torch.tensor([0]))[0], data.test.images[0])


def test_a_picture_whose_reader_trips_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery(tmp_path)
    data = load_folder(tmp_path, in_files=True)

    def trips(*_: object) -> None:
        raise struct.error("unpack requires a buffer of 4 bytes")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", trips)
    with pytest.raises(UsageError, match=r"cannot read the image .*cat.*\(unpack requires a buffer of 4 bytes\): rep"):
        data.train.pixels(torch.tensor([0]))


def test_what_is_resized_or_not_read_is_said(tmp_path: Path) -> None:
    gallery(tmp_path)
    assert load_folder(tmp_path).notes == ()
    (tmp_path / "cat" / "more").mkdir()
    (tmp_path / "dog" / "a.tif").write_bytes(b"")
    (tmp_path / "dog" / ".hidden").write_bytes(b"")
    (line,) = load_folder(tmp_path).notes
    assert "1 folder below class folders and 1 file (.tif) are not read" in line
    for number in range(5):
        paint(tmp_path / "cat" / f"{number:02d}.png", number, size=(90, 70))
    resized = load_folder(tmp_path).notes[0]
    assert resized.startswith("pictures such as 00.png of 90x70 are resized to 32x32: choose another size with")
    assert len(load_folder(tmp_path, image_size=16).notes) == 1


def test_file_names_that_are_no_text_are_spelt_out(tmp_path: Path) -> None:
    """They come from other systems; reports and lists are text."""
    gallery(tmp_path)
    for name in (b"caf\xe9.png", b"caf\xe8.png"):
        shutil.copy(tmp_path / "cat" / "00.png", tmp_path / "cat" / os.fsdecode(name))
    paint(tmp_path / "dog" / "tür.png")
    data = load_folder(tmp_path)
    assert data.train_files[5:7] == ("cat/caf\\xe8.png", "cat/caf\\xe9.png")
    (tmp_path / "dog").rename(os.fsdecode(os.fsencode(tmp_path) + b"/d\xf4g"))
    assert load_folder(tmp_path).classes == ("cat", "d\\xf4g")
    assert data.train_files[-1] == "dog/tür.png"


def test_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="absent is not a folder: pass folder:PATH"):
        load_folder(tmp_path / "absent")
    with pytest.raises(UsageError, match="holds no class folders"):
        load_folder(tmp_path)
    gallery(tmp_path, classes=("cat",))
    with pytest.raises(UsageError, match=r"one class only \(cat\)"):
        load_folder(tmp_path)
    gallery(tmp_path)
    with pytest.raises(UsageError, match="image size 0 is too small"):
        load_folder(tmp_path, image_size=0)
    (tmp_path / "eel").mkdir()
    with pytest.raises(UsageError, match=r"class folder .*eel holds no images .*png"):
        load_folder(tmp_path)
    paint(tmp_path / "eel" / "only.png")
    with pytest.raises(UsageError, match=r"class 'eel' .* has one image"):
        load_folder(tmp_path)


def test_an_unreadable_image_is_named(tmp_path: Path) -> None:
    gallery(tmp_path)
    victim = tmp_path / "dog" / "03.png"
    whole = victim.read_bytes()
    for content in (b"", b"hello", whole[:20], whole[:120]):
        victim.write_bytes(content)
        with pytest.raises(UsageError, match=r"cannot read the image .*dog/03\.png .*: repair or remove it"):
            load_folder(tmp_path)


@pytest.mark.parametrize("left", [0, 120])
def test_unreadable_images_are_named_together(tmp_path: Path, left: int) -> None:
    gallery(tmp_path)
    victims = sorted((tmp_path / "dog").iterdir())
    for victim in victims:
        victim.write_bytes(victim.read_bytes()[:left])
    more = f" and {len(victims) - 5} more" if len(victims) > 5 else ""
    with pytest.raises(UsageError, match=f"cannot read {len(victims)} images, .*dog/01.png.*{more}: repair or remove"):
        load_folder(tmp_path)


def test_deep_images_are_refused_rather_than_clipped(tmp_path: Path) -> None:
    gallery(tmp_path)
    Image.fromarray(np.full((7, 9), 40000, np.uint16)).save(tmp_path / "cat" / "00.png")
    with pytest.raises(UsageError, match=r"cat/00\.png has more than 8 bits"):
        load_folder(tmp_path)


def test_train_and_test_must_agree(tmp_path: Path) -> None:
    gallery(tmp_path / "train")
    with pytest.raises(UsageError, match=f"holds train/ but no test/: .*folder:{tmp_path}/train"):
        load_folder(tmp_path)
    gallery(tmp_path / "test", classes=("cat", "eel"))
    with pytest.raises(UsageError, match="class 'dog' is in only one of train/ and test/"):
        load_folder(tmp_path)


@pytest.mark.parametrize("name", ["train", "test"])
def test_a_class_may_be_called_train_or_test(tmp_path: Path, name: str) -> None:
    gallery(tmp_path, classes=("bus", "car", name))
    for needs_train in (True, False):
        assert load_folder(tmp_path, needs_train=needs_train).classes == ("bus", "car", name)


@pytest.mark.parametrize("beside", [(), ("val",), ("labels", "valid")])
def test_pictures_right_in_train_are_no_class_beside_other_parts(tmp_path: Path, beside: tuple[str, ...]) -> None:
    gallery(tmp_path, classes=("train", *beside))
    with pytest.raises(UsageError, match="holds train/ but no test/"):
        load_folder(tmp_path)


def test_pictures_right_in_train_and_test_are_no_two_classes(tmp_path: Path) -> None:
    gallery(tmp_path, classes=("train", "test"))
    with pytest.raises(UsageError, match="train holds no class folders"):
        load_folder(tmp_path)
