"""The fast path: attacks on a folded network; on CUDA compiled passes, and the whole step captured in one graph."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import nn

from probmargin.core.frozen import ModelMode, frozen
from probmargin.core.fusing import fused
from probmargin.core.types import Classifier, Images, Logits
from probmargin.data.dataset import ImageSet
from probmargin.engine.compile import CompileMode, compiled, use_persistent_cache
from probmargin.engine.devices import Precision
from probmargin.engine.folding import CannotFold, FoldedNetwork
from probmargin.engine.graphs import capture
from probmargin.evaluation.network import check_alike
from probmargin.methods.method import Method
from probmargin.training.network import Network, to_channels_last
from probmargin.training.state import TrainState
from probmargin.training.step import Batch
from probmargin.training.stepper import Chosen, Stepper


class FastNetwork(Network):
    """Training and attack passes as two callables over one set of parameters, compiled unless `mode` is off."""

    def __init__(
        self, model: nn.Module, precision: Precision, mode: CompileMode = "default", *, image_shape: Sequence[int]
    ) -> None:
        super().__init__(model, precision)
        self.order = torch.channels_last
        if not to_channels_last(model, image_shape):
            self.order = torch.contiguous_format
            self.notes.append("weights keep their usual order in memory: the model does not run with channels last")
        use_persistent_cache()
        self._forward = compiled(super().forward, mode)
        self._attack_forward: Classifier | None = None
        self.runs_beside = True
        """Whether a pass on clean images runs beside the attack, on CUDA."""
        self._side: torch.cuda.Stream | None = None
        self._is_refreshed = False
        try:
            self._folded = FoldedNetwork(model, torch.bfloat16 if precision == "bf16" else torch.float32, self.order)
            self._check_folding(image_shape)
        except CannotFold as reason:
            if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules()):
                self.notes.append(f"attacks run without folded batch norm: {reason}")
        else:
            self._attack_forward = compiled(self._folded, mode)
            self._refresh = compiled(self._folded.refresh, mode)

    def _check_folding(self, image_shape: Sequence[int]) -> None:
        """Refuse a folded network that says something else than the model: attacks would aim at another one."""
        folded = FoldedNetwork(self.model, torch.float32, self.order)
        images = torch.rand(4, *image_shape, generator=torch.Generator().manual_seed(0)).to(self._device)
        images = images.contiguous(memory_format=self.order)
        try:
            folded.refresh()
            with frozen(self.model, "eval") as call, torch.no_grad():
                expected, found = call(images), folded(images)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            raise CannotFold(f"its folded copy fails ({type(error).__name__})") from None
        check_alike(expected, found, "tf32")

    def forward(self, x: Images) -> Logits:
        """Training-mode pass with gradient; moves batch-norm statistics."""
        logits: Logits = self._forward(x)
        return logits

    def ahead(self, x: Images) -> Callable[[], Logits]:
        """On CUDA the pass runs on a second stream beside the attack, which has its own copy of the weights."""
        if not x.is_cuda or self._attack_forward is None or not self.runs_beside:
            return super().ahead(x)
        self._refresh()
        self._is_refreshed = True
        side = self._side or torch.cuda.Stream(x.device)
        self._side = side
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            logits = self.forward(x)

        def finish() -> Logits:
            main = torch.cuda.current_stream()
            main.wait_stream(side)
            logits.record_stream(main)
            self._is_refreshed = False
            return logits

        return finish

    def forget(self) -> None:
        """A step that was begun will not be finished."""
        self._is_refreshed = False

    def clean_forward(self) -> Classifier:
        """Training-mode pass with gradient that leaves the buffers alone."""

        def forward(x: Images) -> Logits:
            kept = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
            logits = self.forward(x)
            for buffer, value in kept:
                # Through .data: the backward pass of batch norm in training mode does not read what this puts back.
                buffer.data.copy_(value)
            return logits

        return forward

    @contextmanager
    def frozen(self, mode: ModelMode) -> Iterator[Classifier]:
        """What attacks get: no gradient for parameters, no buffer moves."""
        if mode == "eval" and self._attack_forward is not None:
            if not self._is_refreshed:
                self._refresh()
            yield self._attack_forward
        else:
            with super().frozen(mode) as call:
                yield call


class GraphStepper(Stepper):
    """Replays whole training steps; a short last batch goes operation by operation."""

    def prepare(self, batch_size: int) -> None:
        """Set up the tensors that a captured step reads and writes."""
        device = self.train.labels.device
        self._plain = Network(self.state.model, self.network.precision)
        positions = torch.zeros(batch_size, dtype=torch.int64, device=device)
        draws = torch.zeros(batch_size, 3, dtype=torch.int64, device=device)
        self._epoch = torch.zeros((), dtype=torch.int64, device=device)
        pixels = None
        if not self.train.images.is_cuda:
            pixels = torch.zeros(batch_size, *self.train.images.shape[1:], dtype=torch.uint8, device=device)
        self._chosen = Chosen(positions, draws, pixels)
        self._sums: torch.Tensor | None = None
        self._graph: tuple[str, torch.cuda.CUDAGraph] | None = None
        self._is_broken = False
        self.is_fused = True
        self.state.memory.fill()

    def __call__(self, now: Method, epoch: int, lr: float, chosen: Chosen) -> None:
        """Take one step at a learning rate; `now` is the recipe as it is in this epoch."""
        self._adopt_sums()
        graph = None
        if len(chosen) == len(self._chosen) and not self._is_broken:
            self.state.before_step(lr)
            self._fill(epoch, chosen)
            graph = self._graph_of(now)
        if graph is None:
            self._step_plainly(now, epoch, lr, chosen)
        else:
            graph.replay()
            self.state.after_step()

    def _fill(self, epoch: int, chosen: Chosen) -> None:
        """Write what the captured step reads."""
        self._epoch.fill_(epoch)
        self._chosen.positions.copy_(chosen.positions)
        self._chosen.draws.copy_(chosen.draws)
        if self._chosen.pixels is not None and chosen.pixels is not None:
            self._chosen.pixels.copy_(chosen.pixels)

    def _graph_of(self, now: Method) -> torch.cuda.CUDAGraph | None:
        """The captured step of a recipe; None, once said why, where it cannot be captured."""
        key = now.hash()
        if self._graph is None or self._graph[0] != key:
            self._graph = None
            try:
                self._graph = key, capture(lambda: self._work(now), self._touched())
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:
                self._is_broken = True
                self.network.forget()
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                self.say(f"the fast path is off, steps run operation by operation: {reason}")
                return None
        return self._graph[1]

    def _step_plainly(self, now: Method, epoch: int, lr: float, chosen: Chosen) -> None:
        """Another shape would have to be compiled: one batch an epoch does not pay for that."""
        fast, self.network = self.network, self._plain
        try:
            super().__call__(now, epoch, lr, chosen)
        finally:
            self.network = fast

    def batch(self, chosen: Chosen, epoch: torch.Tensor | int) -> Batch:
        """The chosen images, in the order in memory that the network wants."""
        batch = super().batch(chosen, epoch)
        return replace(batch, x=batch.x.contiguous(memory_format=self.network.order))

    def _work(self, now: Method) -> None:
        with fused() if self.is_fused else nullcontext():
            self.step(now, self.batch(self._chosen, self._epoch))

    def _adopt_sums(self) -> None:
        """Add up in one tensor for all epochs, since a graph knows tensors by their place in memory."""
        assert self.state.sums is not None
        if self._sums is None:
            self._sums = self.state.sums
        elif self.state.sums is not self._sums:
            self._sums.copy_(self.state.sums)
        self.state.sums = self._sums

    def _touched(self) -> list[torch.Tensor]:
        """Everything a step writes."""
        assert self._sums is not None
        average = list(self.state.average.tensors.values()) if self.state.average else []
        memory = self.state.memory.named().values()
        examples = [] if self.state.examples is None else [self.state.examples]
        model = self.state.model
        return [*model.parameters(), *model.buffers(), *memory, *average, *examples, self._sums]


def fast_stepper(
    state: TrainState, train: ImageSet, method: Method, seed: int, *, precision: Precision, mode: CompileMode
) -> GraphStepper:
    """The fast path for a state and data on CUDA."""
    torch.backends.cudnn.benchmark = True
    # A warm-up runs on a stream of its own and is waited for: nothing that users could mend.
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    network = FastNetwork(state.model, precision, mode, image_shape=train.images.shape[1:])
    stepper = GraphStepper(network, state, train, method.augment, seed)
    stepper.prepare(method.batch_size)
    return stepper
