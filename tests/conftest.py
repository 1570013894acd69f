import os
import signal
import threading
from functools import cache

# Before torch starts, and for the processes that tests start: more threads than cores only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import sklearn.datasets
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
# A shell that starts tests in the background has them ignore Ctrl-C, which some of them send.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile(
    "steady", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


@pytest.fixture(autouse=True)
def _same_numbers_each_time() -> None:
    """Whatever a test draws from torch's own generator, it draws again in the next run."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _digits_are_read_once() -> None:
    """Hundreds of tests ask for them, and reading the file takes longer than much of what they do with it."""
    sklearn.datasets.load_digits = cache(sklearn.datasets.load_digits)
