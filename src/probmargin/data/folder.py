"""Images in folders, one folder for each class."""

import hashlib
import os
import struct
import unicodedata
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from PIL import Image

from probmargin.core.errors import UsageError
from probmargin.core.shell import typed
from probmargin.core.words import counted
from probmargin.data.dataset import DataSet, ImageSet
from probmargin.data.files import FileImageSet, Unreadable, free_memory, raise_together, unread
from probmargin.data.judged import no_images
from probmargin.data.order import mixed
from probmargin.data.picture import GREY_MODES, check_depth, flat, orientation, pixels_of, upright

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
TEST_SHARE = 0.2
_LARGEST_NATIVE = 64
_RESIZED = 32
_LARGEST = 1024
_FAULTS = (OSError, SyntaxError, ValueError, TypeError, struct.error, Image.DecompressionBombError)
"""What PIL raises where a file is damaged."""


@dataclass(frozen=True)
class _Format:
    """What every image is brought to."""

    height: int
    width: int
    mode: str

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for RGB."""
        return 1 if self.mode == "L" else 3

    @property
    def values(self) -> int:
        """Numbers an image is made of, a byte each."""
        return self.channels * self.height * self.width


def load_folder(
    path: Path,
    *,
    image_size: int | None = None,
    image_shape: tuple[int, int, int] | None = None,
    in_files: bool | None = None,
    needs_train: bool = True,
) -> DataSet:
    """Load PATH/train/CLASS/* and PATH/test/CLASS/*, or PATH/CLASS/* with 20% of each class as the test set.

    Images of one common size up to 64 keep it; otherwise, or to `image_size`, all are squashed to a square
    (32 by default) by antialiased bilinear resizing. They are turned as their EXIF data says, stay grey if every one
    is grey and else become RGB, unless an `image_shape` (C, H, W) says otherwise; what is transparent becomes white.
    Class numbers follow the sorted folder names. Which pictures are the 20% hangs on CLASS/NAME alone, so one that is
    added moves at most one other of its class. Test images come in a mixed order, always the same, so that the first N
    are a fair sample; `index` is the place in the order of the files. With `in_files`, or where they would take more
    than half of the free memory, training images stay in their files and are read when a batch asks for them. Unless
    it `needs_train`, PATH/test/CLASS/* alone will do; there a class without pictures keeps its number by an empty
    folder.
    """
    path = path.expanduser()
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder: pass folder:PATH with PATH/CLASS/*.png below it")
    if image_size is not None and image_size < 1:
        raise UsageError(f"image size {image_size} is too small: pass at least 1")
    if image_size is not None and image_size > _LARGEST:
        raise UsageError(f"image size {image_size} is too large: pass at most {_LARGEST}")
    roots = _roots(path, needs_train)
    is_judged = roots == [path / "test"]
    listings = [_list(root, may_be_empty=is_judged) for root in roots]
    classes = tuple(listings[0])
    if len(listings) == 2 and tuple(listings[1]) != classes:
        odd = sorted(set(classes) ^ set(listings[1]))
        raise UsageError(f"{path}: class {odd[0]!r} is in only one of train/ and test/: make them the same")
    if len(classes) < 2:
        raise UsageError(f"{roots[0]} holds one class only ({classes[0]}): add a folder for a second class")
    files = [file for listing in listings for group in listing.values() for file in group]
    target, odd_one = _choose_format(files, image_size, image_shape)
    if in_files is None:
        in_files = len(files) * target.values > free_memory() // 2
    parts: list[ImageSet] = [_unread(listing, target) for listing in listings]
    is_asked = image_size is not None or image_shape is not None
    resized = "" if is_asked or odd_one is None else _resized(odd_one, target)
    skipped = _skipped(listings, path)
    if is_judged:
        test = mixed(parts[0]).to("cpu")
        return DataSet(f"folder:{path}", no_images(test), test, classes, tuple(filter(None, (resized, skipped))))
    train, test = parts if len(parts) == 2 else _split(parts[0], listings[0], path)
    share = "" if needs_train or len(parts) == 2 else _share(len(test), len(files), path)
    train, test = train if in_files else train.to("cpu"), mixed(test).to("cpu")
    names = tuple(_printable(f"{name}/{file.name}") for name, group in listings[0].items() for file in group)
    return DataSet(f"folder:{path}", train, test, classes, tuple(filter(None, (resized, skipped, share))), names)


def _printable(name: str) -> str:
    """A file's name with bytes that are no text spelt out, as \\xe9."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _roots(path: Path, needs_train: bool) -> list[Path]:
    """The folders that hold class folders: of both parts, of test images alone, or one that is split here."""
    has_train, has_test = (path / "train").is_dir(), (path / "test").is_dir()
    if has_test and not has_train and not needs_train and not _is_class(path / "test"):
        return [path / "test"]
    if has_train != has_test:
        have, need = ("train", "test") if has_train else ("test", "train")
        if _is_class(path / have):
            return [path]
        raise UsageError(
            f"{path} holds {have}/ but no {need}/: add it, or give folder:{typed(path / have)}, "
            "of which 20% become the test set"
        )
    return [path / "train", path / "test"] if has_train else [path]


_PARTS = {"train", "test", "val", "valid", "validation", "dev", "eval", "labels", "annotations"}
"""What folders beside train/ are called that are no classes."""


def _is_class(path: Path) -> bool:
    """Pictures right in train/, and other folders beside it: a class of that name, as a train is."""
    beside = {entry.name for entry in path.parent.iterdir() if entry.is_dir() and entry.name[0] != "."}
    return bool(beside - _PARTS) and bool(_pictures(path)) and not any(entry.is_dir() for entry in path.iterdir())


def _pictures(folder: Path) -> list[Path]:
    """The pictures right in a folder, as they lie there."""
    return [file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and file.name[0] != "."]


def _resized(odd_one: tuple[Path, tuple[int, int]], target: _Format) -> str:
    """A line where pictures lose their size unasked."""
    file, (width, height) = odd_one
    return (
        f"pictures such as {_printable(file.name)} of {width}x{height} are resized to {target.width}x{target.height}: "
        "choose another size with --image-size N"
    )


def _share(judged: int, total: int, path: Path) -> str:
    """A line where a part of the pictures is judged."""
    return f"{judged} of the {total} pictures in {path} are judged, as its test set: put all into {path}/test for more"


def _skipped(listings: list[dict[str, list[Path]]], path: Path) -> str:
    """A line on what lies in class folders and is not read."""
    taken = {file for listing in listings for group in listing.values() for file in group}
    folders = {file.parent for file in taken}
    rest = [entry for folder in folders for entry in folder.iterdir() if entry not in taken and entry.name[0] != "."]
    below, others = sum(entry.is_dir() for entry in rest), [entry for entry in rest if not entry.is_dir()]
    kinds = ", ".join(sorted({entry.suffix or entry.name for entry in others})[:5])
    parts = (
        f"{counted(below, 'folder')} below class folders" if below else "",
        f"{counted(len(others), 'file')} ({kinds})" if others else "",
    )
    left_out = " and ".join(filter(None, parts))
    known = ", ".join(suffix[1:] for suffix in SUFFIXES)
    verb = "is" if len(rest) == 1 else "are"
    return f"{path}: {left_out} {verb} not read: pictures are {known} files right in CLASS/" if left_out else ""


def _upright(image: Image.Image) -> tuple[int, int]:
    """Width and height once the picture is turned as its EXIF data says."""
    width, height = image.size
    return (height, width) if orientation(image) in (5, 6, 7, 8) else (width, height)


def _list(root: Path, *, may_be_empty: bool = False) -> dict[str, list[Path]]:
    """Return each class's image files, both sorted by name."""
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not folders:
        raise UsageError(f"{root} holds no class folders: put the images in {root}/CLASS/")
    listing = {}
    for folder in folders:
        name = _printable(folder.name)
        listing[name] = sorted(_pictures(folder))
        if not listing[name] and not may_be_empty:
            kinds = ", ".join(suffix[1:] for suffix in SUFFIXES)
            raise UsageError(f"class folder {folder} holds no images ({kinds}): add some or remove it")
    if not any(listing.values()):
        raise UsageError(f"{root} holds empty class folders alone: put the images in {root}/CLASS/")
    return listing


def _unreadable(file: Path, error: Exception) -> Unreadable:
    return Unreadable(file, " ".join(str(error).split()) or type(error).__name__)


def _choose_format(
    files: list[Path], image_size: int | None, image_shape: tuple[int, int, int] | None
) -> tuple[_Format, tuple[Path, tuple[int, int]] | None]:
    """Decide size and mode from the headers alone, before any pixel is decoded; and one picture of another size."""
    sizes, modes, wrong = dict[tuple[int, int], Path](), set(), list[Unreadable]()
    for file in files:
        try:
            with Image.open(file) as image:
                sizes.setdefault(_upright(image), file)
                modes.add(image.mode)
        except _FAULTS as error:
            wrong.append(_unreadable(file, error))
            continue
        check_depth(file, image.mode)
    raise_together(wrong)
    width, height = next(iter(sizes))
    channels = 1 if modes <= set(GREY_MODES) else 3
    if image_shape is not None:
        channels, height, width = image_shape
    elif image_size is not None:
        width = height = image_size
    elif len(sizes) > 1 or max(width, height) > _LARGEST_NATIVE:
        width = height = _RESIZED
    odd_one = next(((file, size) for size, file in sizes.items() if size != (width, height)), None)
    return _Format(height, width, "L" if channels == 1 else "RGB"), odd_one


def _unread(listing: dict[str, list[Path]], target: _Format) -> FileImageSet:
    files = tuple(file for group in listing.values() for file in group)
    labels = torch.tensor([label for label, group in enumerate(listing.values()) for _ in group])
    images = unread(len(files), (target.channels, target.height, target.width))
    decode = partial(_decode, target=target)
    return FileImageSet(images, labels, torch.arange(len(labels)), files=files, decode=decode)


def _decode(file: Path, target: _Format) -> torch.Tensor:
    try:
        with Image.open(file) as opened:
            opened.load()
            image = flat(upright(opened), target.mode)
    except _FAULTS as error:
        raise _unreadable(file, error) from error
    if image.size != (target.width, target.height):
        image = image.resize((target.width, target.height), Image.Resampling.BILINEAR)
    return pixels_of(image)


def _split(everything: ImageSet, listing: dict[str, list[Path]], path: Path) -> tuple[ImageSet, ImageSet]:
    """Split off a share of each class, chosen by names alone: a picture that is added moves one other at most."""
    is_test: list[bool] = []
    for name, files in listing.items():
        if len(files) < 2:
            raise UsageError(
                f"class {name!r} in {path} has one image, so no test image can be split off: "
                "add images, or make train/ and test/ folders"
            )
        chosen = set(sorted(files, key=_draw)[: max(1, round(TEST_SHARE * len(files)))])
        is_test += [file in chosen for file in files]
    held = torch.tensor(is_test)
    return everything.take((~held).nonzero()[:, 0]), everything.take(held.nonzero()[:, 0])


def _draw(file: Path) -> str:
    """A picture's place in the draw for the test set, which hangs on CLASS/NAME and on nothing else."""
    name = unicodedata.normalize("NFC", f"{file.parent.name}/{file.name}")
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
