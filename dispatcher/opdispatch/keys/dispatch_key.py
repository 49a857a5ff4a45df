"""The layers a call can stop at. Among functionalities, a larger value is served earlier.

Mirrors ``c10/core/DispatchKey.h`` of PyTorch 2.13: the same names, order and values. Two lists
define everything: the backends, and the functionalities. A functionality that each backend may
serve in its own way (``PER_BACKEND_FUNCTIONALITIES``) has one *runtime key* for each backend, such
as ``AutogradCUDA``; these are generated. Alias keys are shorthand for registration.

Note [Alias keys own nothing]
    An alias key stands for several runtime keys. A kernel registered to an alias fills those
    of their slots that have no kernel of their own. No tensor carries an alias key, a key set
    cannot hold one, and no call arrives at one.

Note [Named and ORT are extra]
    Older releases of PyTorch had the keys ``Named`` and ``ORT``, and 2.13 dropped them. They
    exist here, with the two highest bits of the word and values above every alias, so that
    nothing that is compared with PyTorch 2.13 moves. No alias includes them, and ``FULL`` and
    ``FULL_AFTER`` leave them out.
"""

from __future__ import annotations

import itertools
from enum import IntEnum

from opdispatch.errors import DispatchKeyError


class BackendComponent(IntEnum):
    """A kind of device or memory; the value is its bit in a key set, and the highest bit wins."""

    CPU = 0
    CUDA = 1
    HIP = 2
    XLA = 3
    MPS = 4
    IPU = 5
    XPU = 6
    HPU = 7
    VE = 8
    Lazy = 9
    MTIA = 10
    MAIA = 11
    PrivateUse1 = 12
    PrivateUse2 = 13
    PrivateUse3 = 14
    Meta = 15  # the highest: a Meta tensor among the arguments makes the call a Meta call


NUM_BACKENDS = len(BackendComponent)

# The functionalities that every backend can serve in its own way, each with the prefix of
# its runtime keys' names.
_PREFIXES = {
    "Dense": "",
    "Quantized": "Quantized",
    "Sparse": "Sparse",
    "SparseCsr": "SparseCsr",
    "NestedTensor": "NestedTensor",
    "AutogradFunctionality": "Autograd",
}


class DispatchKey(IntEnum):
    """A dispatch key: nothing, a functionality, a runtime key, or an alias."""

    # names used only in this class body
    _ignore_ = "_members _next _functionality _prefix _backend"

    # -- nothing to dispatch on -------------------------------------------------------------
    Undefined = 0  # table slot 0: where calls without tensor arguments land
    CatchAll = Undefined

    # -- functionalities: each owns one bit of a key set ------------------------------------
    Dense = 1
    FPGA = 2
    Vulkan = 3
    Metal = 4
    Quantized = 5
    CustomRNGKeyId = 6
    MkldnnCPU = 7
    Sparse = 8
    SparseCsr = 9
    NestedTensor = 10
    BackendSelect = 11  # picks the backend of a call that has no tensor to determine it
    Fake = 12
    Python = 13
    FuncTorchDynamicLayerBackMode = 14
    Functionalize = 15
    Conjugate = 16
    Negative = 17
    ZeroTensor = 18
    ADInplaceOrView = 19
    AutogradOther = 20  # the backends that have no Autograd key of their own
    AutogradFunctionality = 21
    AutogradNestedTensor = 22
    Tracer = 23
    AutocastCPU = 24
    AutocastMTIA = 25
    AutocastMAIA = 26
    AutocastXPU = 27
    AutocastIPU = 28
    AutocastHPU = 29
    AutocastXLA = 30
    AutocastMPS = 31
    AutocastCUDA = 32
    AutocastPrivateUse1 = 33
    FuncTorchBatched = 34
    BatchedNestedTensor = 35
    FuncTorchVmapMode = 36
    Batched = 37
    VmapMode = 38
    FuncTorchGradWrapper = 39
    DeferredInit = 40
    PythonTLSSnapshot = 41
    FuncTorchDynamicLayerFrontMode = 42
    TESTING_ONLY_GenericWrapper = 43
    TESTING_ONLY_GenericMode = 44
    PreDispatch = 45
    PythonDispatcher = 46
    EndOfFunctionalityKeys = 47

    # -- runtime keys: functionality x backend, each owns a table slot ----------------------
    _members = vars()
    _next = itertools.count(EndOfFunctionalityKeys + 1)
    for _functionality, _prefix in _PREFIXES.items():
        _members[f"StartOf{_functionality}Backends"] = next(_next)
        for _backend in BackendComponent:
            _members[f"{_prefix}{_backend.name}"] = next(_next)
        _members[f"EndOf{_functionality}Backends"] = _members[f"{_prefix}Meta"]
    EndOfRuntimeBackendKeys = _members["AutogradMeta"]

    # -- alias keys: registration shorthand. See Note [Alias keys own nothing] --------------
    Autograd = 150
    CompositeImplicitAutograd = 151
    FuncTorchBatchedDecomposition = 152
    CompositeImplicitAutogradNestedTensor = 153
    CompositeExplicitAutograd = 154
    CompositeExplicitAutogradNonFunctional = 155
    StartOfAliasKeys = Autograd
    EndOfAliasKeys = CompositeExplicitAutogradNonFunctional

    # -- dropped by PyTorch 2.13. See Note [Named and ORT are extra] ------------------------
    ORT = 156
    Named = 157

    # -- names of older releases ------------------------------------------------------------
    CPUTensorId = _members["CPU"]
    CUDATensorId = _members["CUDA"]
    DefaultBackend = CompositeExplicitAutograd
    PrivateUse1_PreAutograd = _members["AutogradPrivateUse1"]
    PrivateUse2_PreAutograd = _members["AutogradPrivateUse2"]
    PrivateUse3_PreAutograd = _members["AutogradPrivateUse3"]
    Autocast = AutocastCUDA

    def __str__(self) -> str:
        return _PRINTED.get(self.value, self.name)


# The marker is the highest key of a set that has the functionality without a backend bit.
_PRINTED = {
    DispatchKey[f"StartOf{functionality}Backends"].value: f"{prefix}Undefined"
    for functionality, prefix in _PREFIXES.items()
}

PER_BACKEND_FUNCTIONALITIES: tuple[DispatchKey, ...] = tuple(DispatchKey[n] for n in _PREFIXES)
ALIAS_KEYS: tuple[DispatchKey, ...] = tuple(
    k for k in DispatchKey if DispatchKey.StartOfAliasKeys <= k <= DispatchKey.EndOfAliasKeys
)

# Every functionality in the order of the bits, lowest first.
FUNCTIONALITIES: tuple[DispatchKey, ...] = (
    *(k for k in DispatchKey if DispatchKey.Undefined < k < DispatchKey.EndOfFunctionalityKeys),
    DispatchKey.ORT,
    DispatchKey.Named,
)
FUNCTIONALITY_BIT: dict[DispatchKey, int] = {
    key: NUM_BACKENDS + place for place, key in enumerate(FUNCTIONALITIES)
}

_RUNTIME: dict[tuple[DispatchKey, BackendComponent], DispatchKey] = {
    (DispatchKey[functionality], backend): DispatchKey[f"{prefix}{backend.name}"]
    for functionality, prefix in _PREFIXES.items()
    for backend in BackendComponent
}
_PARTS: dict[DispatchKey, tuple[DispatchKey, BackendComponent]] = {
    key: parts for parts, key in _RUNTIME.items()
}


def is_alias_key(key: DispatchKey) -> bool:
    """Return whether ``key`` is shorthand for several runtime keys."""
    return DispatchKey.StartOfAliasKeys <= key <= DispatchKey.EndOfAliasKeys


def is_per_backend_functionality(key: DispatchKey) -> bool:
    """Return whether each backend has a runtime key of its own for ``key``."""
    return key in PER_BACKEND_FUNCTIONALITIES


def to_functionality_key(key: DispatchKey) -> DispatchKey:
    """Return the functionality to which ``key`` belongs; Undefined for an alias."""
    if key in FUNCTIONALITY_BIT:
        return key
    if key in _PARTS:
        return _PARTS[key][0]
    for functionality in PER_BACKEND_FUNCTIONALITIES:
        if key is DispatchKey[f"StartOf{functionality.name}Backends"]:
            return functionality
    return DispatchKey.Undefined


def to_backend_component(key: DispatchKey) -> BackendComponent | None:
    """Return the backend of a runtime key; None for every other key."""
    parts = _PARTS.get(key)
    return parts[1] if parts else None


def to_runtime_key(functionality: DispatchKey, backend: BackendComponent | None) -> DispatchKey:
    """Return the key of ``functionality`` on ``backend``.

    Without a backend, a per-backend functionality gives its start-of-backends marker; any
    other functionality is its own runtime key.
    """
    if functionality not in PER_BACKEND_FUNCTIONALITIES:
        return functionality
    if backend is None:
        return DispatchKey[f"StartOf{functionality.name}Backends"]
    return _RUNTIME[functionality, backend]


_MEMBERS = DispatchKey.__members__  # cached: each access to the property creates a view


def parse_dispatch_key(name: str) -> DispatchKey:
    """Return the key of that name, including names of older releases.

    Raises DispatchKeyError if there is none. PyTorch's parser (``c10::parseDispatchKey``) refuses
    the older names, and 42 runtime keys that PyTorch has; this one accepts every name.
    """
    key = _MEMBERS.get(name)
    if key is None or name.startswith(("StartOf", "EndOf")):
        raise DispatchKeyError(
            f"there is no dispatch key {name!r}; expected a name such as "
            "'CPU', 'CUDA', 'AutogradCPU' or 'CompositeImplicitAutograd'",
            key=name,
        )
    return key


# PyTorch's device names that differ from the lower-case names of dispatch keys.
_KEY_NAMES_OF_TYPES = {
    "default": "CompositeExplicitAutograd",
    "privateuseone": "PrivateUse1",
    **{key.name.lower(): key.name for key in BackendComponent},
    **{name.lower(): name for name in ("FPGA", "Vulkan")},
}


def key_of(key: str | DispatchKey) -> DispatchKey:
    """Return a key, given itself or its name; Undefined for "". Raises DispatchKeyError."""
    if isinstance(key, DispatchKey):
        return key
    return parse_dispatch_key(key) if key else DispatchKey.Undefined


def key_of_device_type(name: str) -> DispatchKey:
    """Return the key of a device type such as ``cuda``, or the key of that name.

    Raises DispatchKeyError.
    """
    return parse_dispatch_key(_KEY_NAMES_OF_TYPES.get(name, name))
