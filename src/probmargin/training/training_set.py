"""The training set as a run sees it: wrong labels put in, images held out."""

from dataclasses import dataclass

import torch

from probmargin.core.errors import UsageError
from probmargin.data.dataset import DataSet, ImageSet, split_validation
from probmargin.data.label_noise import label_noise
from probmargin.training.request import TrainRequest


@dataclass(frozen=True)
class TrainingSet:
    """What is trained on, what chooses the best state, and which labels were made wrong."""

    train: ImageSet
    held_out: ImageSet | None
    wrong_labels: dict[str, torch.Tensor] | None


def prepare(data: DataSet, request: TrainRequest) -> TrainingSet:
    """Put wrong labels in, where asked for, and then hold images out: a real data set has no clean held-out part."""
    images, wrong = data.train, None
    if request.label_noise is not None:
        images, mask = label_noise(images, request.label_noise, data.num_classes, request.seed)
        wrong = {"index": images.index, "is_wrong": mask, "labels": images.labels}
    if request.validation is None:
        return TrainingSet(images, None, wrong)
    rest, held_out = split_validation(images, request.validation, request.seed)
    classes = len(images.labels.unique())
    if len(rest.labels.unique()) < classes:
        most = len(images) - classes
        raise UsageError(
            f"--validation {request.validation} leaves a class without training images: give {most} at most, or leave "
            "it out"
        )
    return TrainingSet(rest, held_out, wrong)
