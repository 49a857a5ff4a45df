"""Plans of similar calls in an interpreter: the kernel, its arguments and the form of its reply.

See Note [Planned calls] in ``opdispatch_client.lanes.call_plan``; this is the callee's half. A plan
is made after a call that declares its constant bytes has run on the general path, and is valid in
one epoch of the registry. A planned call that meets anything unusual takes the general path.
"""

from __future__ import annotations

from typing import Any

from opdispatch.arrays.backend import ArrayBackend
from opdispatch.arrays.backends import backends_with_blocks
from opdispatch.schema.types import TENSOR
from opdispatch_server.call_context import KERNEL_THREADS
from opdispatch_server.worker.libraries.chosen_kernel import ChosenKernel
from opdispatch_server.worker.libraries.loaded import LoadedLibrary
from opdispatch_wire.planned_replies import ReplyForm
from opdispatch_wire.planned_requests import RequestLayout
from opdispatch_wire.shared_memory.call_memory import THRESHOLD
from opdispatch_wire.variable_parts import Leaf, filled


class KernelPlan:
    """The plan of calls whose requests differ only in id, timeout and leaves."""

    __slots__ = (
        "_constants",
        "_is_in_order",
        "_template",
        "argument_bytes",
        "blocks",
        "choice",
        "epoch",
        "form",
        "has_only_leaves",
        "is_inline",
        "layout",
        "library",
        "limit",
        "operator",
        "returns_tensor",
        "run",
        "shares",
    )

    def __init__(
        self,
        layout: RequestLayout,
        operator: str,
        library: LoadedLibrary,
        choice: ChosenKernel,
        template: list[Any] | None,
        argument_bytes: int,
        epoch: int,
        run: int,
    ) -> None:
        self.layout = layout
        self.operator = operator
        self.library = library
        self.choice = choice
        # The template of the kernel's arguments; None if they have to be bound for each call.
        self._template = template
        leaves = [each for each in template or () if type(each) is Leaf]
        constants = [] if template is None else template[len(leaves) :]
        # Most often, the leaves come first, in the order of the request.
        self._is_in_order = (
            template is not None
            and template[: len(leaves)] == [Leaf(place) for place in range(len(leaves))]
            and not any(type(each) is list for each in constants)
        )
        self._constants = tuple(constants)
        self.has_only_leaves = self._is_in_order and not constants
        """Whether the kernel gets exactly the leaves, so that ``stack`` is not needed."""
        self.argument_bytes = argument_bytes
        """See ``RunningCall.argument_bytes``."""
        self.epoch = epoch
        self.run = run
        """See ``RunningCall.run``."""
        self.limit = min(library.max_concurrency, KERNEL_THREADS)
        # Looked up once: a library that brings a new backend begins a new epoch.
        self.blocks: tuple[ArrayBackend, ...] = backends_with_blocks()
        returns = choice.signature.schema.returns
        self.returns_tensor = len(returns) == 1 and returns[0].type == TENSOR
        """Whether the operator returns exactly one tensor."""
        self.form: ReplyForm | None = None
        """The form of the last reply; None if it had none."""
        self.is_inline = not layout.shared and layout.longest >= THRESHOLD
        """Whether tensors large enough for shared memory are inline in the requests."""
        self.shares = bool(layout.shared)
        """Whether tensors of the requests or of the last reply are in shared memory."""

    def learn(self, form: ReplyForm | None) -> None:
        """Store the form of a reply, which the next replies are likely to have, or None."""
        self.form = form
        self.shares = bool(self.layout.shared or (form is not None and form.shared))

    def stack(self, leaves: list[Any]) -> list[Any]:
        """Return the kernel's arguments for these leaves. Raises as ``Signature.bind`` does."""
        if self._is_in_order:
            return [*leaves, *self._constants]
        if self._template is not None:
            return [filled(each, leaves) for each in self._template]
        args = [filled(each, leaves) for each in self.layout.args]
        kwargs = {name: filled(each, leaves) for name, each in self.layout.kwargs.items()}
        return self.choice.signature.bind(args, kwargs)
