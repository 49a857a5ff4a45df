"""Options and side effects of ``backward`` and ``grad``, compared with PyTorch's."""

import pytest
from autograd_sides import OURS, THEIRS, leaf, outcome

# PyTorch warns of the circle that a gradient with a history is.
pytestmark = pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")

CASES = {}


def case(program):
    """Add it to the cases."""
    CASES[program.__name__] = program
    return program


@case
def zeros_for_what_is_not_used(side):
    x, y = leaf(side, 1, 2), leaf(side, 1, 2)
    plain = side.grad(side.sum(x * x), [x, y], materialize_grads=True)
    recorded = side.grad(side.sum(x * x), [x, y], materialize_grads=True, create_graph=True)
    return [(each, each.requires_grad) for each in (*plain, *recorded)]


@case
def inputs_that_are_results_retain_their_gradients(side):
    x = leaf(side, 1, 2)
    y = x * 2
    found = []
    for inputs in ([y], [y, y], [x, y], None):
        side.backward(side.sum(y * y), inputs=inputs, retain_graph=True)
        found.append((y.grad * 1, x.grad))
    return found, y.retains_grad


@case
def inputs_that_are_given_twice(side):
    x = leaf(side, 1, 2)
    side.backward(side.sum(x * x), inputs=[x, x])
    return x.grad


@case
def hooks_of_inputs_that_are_results(side):
    x, seen = leaf(side, 1, 2), []
    y = x * 2
    y.register_hook(lambda grad: (seen.append(grad), grad * 10)[1])
    side.backward(side.sum(y * y), inputs=[y], retain_graph=True)
    side.backward(side.sum(y * y), inputs=[x])
    return seen, y.grad, x.grad


@case
def gradients_are_added_where_they_are(side):
    x = leaf(side, 1, 2)
    side.backward(side.sum(x * x))
    first = x.grad
    side.backward(side.sum(x * x))
    written = x.grad is first, first * 1
    side.backward(side.sum(x * 3), create_graph=True)
    return written, x.grad is first, first, x.grad, x.grad.requires_grad


@case
def gradients_keep_the_history_that_they_have(side):
    x = leaf(side, 1, 2)
    side.backward(side.sum(x * x * x), create_graph=True)
    first = x.grad
    side.backward(side.sum(x * x))
    return x.grad is first, x.grad, x.grad.requires_grad


@case
def gradients_of_broadcast_sums_can_be_added_to(side):
    x, y = leaf(side, 1, 2), leaf(side, 3)
    side.backward(side.sum(x * y), create_graph=True)
    side.backward(side.sum(x * y))
    return x.grad, y.grad


@case
def a_view_under_no_grad_is_not_used(side):
    x = leaf(side, 1, 2)
    with side.no_grad():
        view = x[1:]
    seen = []
    view.register_post_accumulate_grad_hook(seen.append)
    side.backward(side.sum(view * view), inputs=[view])
    return seen, side.grad(side.sum(view * view), [view], allow_unused=True), view.grad


@case
def a_view_under_no_grad_must_be_used(side):
    with side.no_grad():
        view = leaf(side, 1, 2)[1:]
    side.grad(side.sum(view * view), [view])


@pytest.mark.parametrize("name", sorted(CASES))
def test_backward_pass_agrees_with_pytorch(name):
    (ours, found), (theirs, expected) = outcome(CASES[name], OURS), outcome(CASES[name], THEIRS)
    assert ours == theirs, (found, expected)
    assert ours == "refused" or found == expected
