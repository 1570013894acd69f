"""MAIL-TRADES in a Lightning module: the loss goes into `training_step`.

pip install 'probmargin[loops]'
python examples/lightning_loop.py
"""

import sys
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import probmargin as pm

EPOCHS, BURN_IN = 8, 5
BALL = {"eps": 0.15, "step_size": 0.03}


class Robust(lightning.LightningModule):
    """A network that is trained on its own adversarial images."""

    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(
            torch.nn.Conv2d(1, 32, 3, padding=1),
            torch.nn.BatchNorm2d(32),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(32 * 64, 10),
        )

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        """Attack, weigh and sum up; gradients, precision and devices stay Lightning's business."""
        x, labels = batch
        weighted, several = self.current_epoch >= BURN_IN, self.trainer.world_size > 1
        return pm.mail_loss(
            self.network, x, labels, method="mail-trades", weighted=weighted, all_processes=several, **BALL
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD, as the paper has it."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)


def main() -> float:
    """Train, and return the accuracy under PGD-20."""
    lightning.seed_everything(0, verbose=False)
    data = pm.load_data("digits")
    loader = DataLoader(TensorDataset(data.train.floats(), data.train.labels), batch_size=128, shuffle=True)
    module = Robust()
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    result = pm.evaluate(module.network, (data.test.floats(), data.test.labels), ["nat", "pgd-20"], eps=BALL["eps"])
    sys.stdout.write(f"natural {result['nat']['accuracy']:.1%}, PGD-20 {result['pgd-20']['robust_accuracy']:.1%}\n")
    return float(result["pgd-20"]["robust_accuracy"])


if __name__ == "__main__":
    main()
