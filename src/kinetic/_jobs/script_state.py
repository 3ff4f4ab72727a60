"""What a job gets of its script: the words of the command line, flags, logging, and settings of libraries."""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib
import io
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import getitem
from typing import TYPE_CHECKING, Any

from kinetic._output import terminal as output
from kinetic._output.format import size_text
from kinetic._project import root
from kinetic._wire import attributes

if TYPE_CHECKING:
    from kinetic._project.pickler import PickleRules
    from kinetic._project.root import Plan

_MOST_BYTES = 64_000  # a variable may have 128 KiB, and a Secret 1 MiB with all else


def command_line(function: object, plan: Plan, by_value: Sequence[str] = ()) -> str:
    """Return what the script got from its command line, as JSON, or "" for nothing: functions may read it.

    That is ``words``, what is in ``sys.argv`` after the script's name, what absl, gin and Hydra have kept, and what
    Django was set up with. Programs that are installed, such as pytest, have words of their own, and so have functions
    of ours.

    Args:
        function: What the job calls.
        plan: The project that is sent.
        by_value: Modules that the user wants by value.
    """
    if str(getattr(root.innermost(function), "__module__", "")).startswith("kinetic."):
        return ""
    told: dict[str, Any] = {}
    file = os.path.join(plan.root, script) if (script := root.script_of(plan)) else None
    words = [word for word in getattr(sys, "argv", ())[1:] if isinstance(word, str)]
    if file is not None and not root.is_program(file) and words:
        told["words"] = words
    told |= _absl_flags(plan, by_value) | _gin_bindings(plan, by_value) | _hydra_config(plan, by_value) | _django()
    if len(found := json.dumps(told)) > _MOST_BYTES:
        output.report_once(
            f"the script's command line has more than {size_text(_MOST_BYTES)} and stays here: a function that reads "
            "sys.argv, flags of absl, bindings of gin or Hydra's own config in the job finds none of it"
        )
        return ""
    return found if told else ""


def _absl_flags(plan: Plan, by_value: Sequence[str]) -> dict[str, Any]:
    """Return ``flags``, how often each of absl's was given, and its value as a pickle, but defaults.

    A flag that was set by the program, as by ``FLAGS.rate = 0.5``, was given no time. ``parsed`` is whether flags may
    be read.
    """
    flags = getattr(sys.modules.get("absl.flags"), "FLAGS", None)
    if flags is None:
        return {}
    from kinetic._project import pickler  # the submission loads it anyway

    rules, found = pickler.PickleRules(plan, by_value), dict[str, tuple[int, str]]()
    for flag in {id(flag): flag for flag in map(flags.__getitem__, flags)}.values():  # some have a short name as well
        if flag.using_default_value:
            continue
        if data := _pickled(flag.value, rules, f"the flag --{flag.name} stays here"):
            found[flag.name] = flag.present, data
    return {"flags": found, "parsed": flags.is_parsed()} if found or flags.is_parsed() else {}


def _gin_bindings(plan: Plan, by_value: Sequence[str]) -> dict[str, str]:
    """Return the bindings of gin as a pickle: by scope and selector, the values of parameters."""
    bindings = getattr(sys.modules.get("gin.config"), "_CONFIG", None)  # 0.5.0; ``gin.parse_config`` fills it
    if not bindings:
        return {}
    from kinetic._project import pickler  # as above

    data = _pickled(bindings, pickler.PickleRules(plan, by_value), "the bindings of gin stay here")
    return {"gin": data} if data else {}


def _hydra_config(plan: Plan, by_value: Sequence[str]) -> dict[str, Any]:
    """Return ``resolvers`` of OmegaConf by name, and ``hydra``, Hydra's own config, as pickles, the latter compressed.

    A config refers to both, as by ``${hydra:job.name}``; Hydra's own launchers take them along as well.
    """
    container = getattr(sys.modules.get("omegaconf.basecontainer"), "BaseContainer", None)  # 2.3
    resolvers = {name: each for name, each in getattr(container, "_resolvers", {}).items() if name[:3] != "oc."}
    if not resolvers:
        return {}
    from kinetic._project import pickler  # as above

    rules, told = pickler.PickleRules(plan, by_value), dict[str, Any]()
    packed = [(name, _pickled(each, rules, f"{name} of OmegaConf stays here")) for name, each in resolvers.items()]
    told["resolvers"] = {name: data for name, data in packed if data}
    if "hydra" in resolvers:  # its ``setup_globals`` registers that; a job that submits jobs may not have used it
        own: Any = importlib.import_module("hydra.core.hydra_config").HydraConfig
        if own.initialized():
            told["hydra"] = _pickled(own.instance().cfg, rules, "the config of Hydra stays here", compress=True)
    return told


def _django() -> dict[str, list[str]]:
    """Return the module of Django's settings, as ``manage.py`` names it, and the packages of its apps."""
    apps = getattr(sys.modules.get("django.apps"), "apps", None)
    settings = os.environ.get("DJANGO_SETTINGS_MODULE")
    if apps is None or not apps.ready or not settings:
        return {}
    return {"django": [settings, *(app.name for app in apps.get_app_configs())]}


def _pickled(value: object, rules: PickleRules, otherwise: str, *, compress: bool = False) -> str:
    from kinetic._project import pickler  # as above

    data = io.BytesIO()
    try:
        pickler.dump(value, data, rules)
    except Exception as error:  # noqa: BLE001 - pickling runs user code
        output.report_once(f"{otherwise}: {error}")
        return ""
    return base64.b64encode(zlib.compress(data.getvalue()) if compress else data.getvalue()).decode()


def console_logging() -> dict[str, Any]:
    """Return, as part of the plan, how this process shows log records on its output; nothing where it does not.

    The script's own call of ``logging.basicConfig`` is not repeated in the job, and its records would be lost; nor are
    the levels and handlers that it gives to loggers of its own.
    """
    logging: Any = sys.modules.get("logging")
    if logging is None:
        return {}
    told: dict[str, Any] = {"logging": found} if (found := _shown_by(logging, logging.root)) else {}
    loggers: dict[str, Any] = {}
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if type(logger) is not logging.Logger:  # a library makes one of its own class, as absl
            continue
        if logger.propagate and logger.level and not logger.handlers:
            loggers[name] = {"level": logger.level}
        is_library = root.is_installed(getattr(sys.modules.get(name.partition(".")[0]), "__file__", None))
        if not is_library and (found := _shown_by(logging, logger, alone=True)):
            loggers[name] = {"propagate": logger.propagate, "handler": found}
    return told | ({"loggers": loggers} if loggers else {})


def _levels() -> dict[str, dict[str, Any]]:
    """Return by the module that makes them the levels of loggers that libraries have given handlers, as Optuna does.

    The script's own call, as of ``optuna.logging.set_verbosity``, is not repeated in the job, where such a library sets
    its own level when it is imported.
    """
    found: dict[str, dict[str, Any]] = {}
    logging: Any = sys.modules.get("logging")
    for name, logger in list(logging.root.manager.loggerDict.items()) if logging else ():
        if type(logger) is not logging.Logger or not logger.handlers or not logger.level:
            continue
        module = name if name in sys.modules else name.partition(".")[0]
        if module != "kinetic" and root.is_installed(getattr(sys.modules.get(module), "__file__", None)):
            found.setdefault(module, {"levels": {}})["levels"][name] = logger.level
    return found


def _shown_by(logging: Any, logger: Any, *, alone: bool = False) -> dict[str, Any]:
    """Return level and format of a logger's first handler that writes to our output.

    ``alone``: nothing if others write elsewhere, since a function may add all of them where it finds none.
    """
    ours = [stream for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__) if stream is not None]
    shown = [handler for handler in logger.handlers if any(_stream_of(handler) is each for each in ours)]
    if not shown or (alone and shown != logger.handlers):
        return {}
    if hasattr(handler := shown[0], "python_handler"):
        return {"absl": True}
    told: dict[str, Any] = {"level": max(logger.level, handler.level)}
    style = type(getattr(handler.formatter, "_style", None))
    styles = {kind: letter for letter, (kind, _) in logging._STYLES.items()}  # noqa: SLF001 - no other way to ask
    if type(handler.formatter) is logging.Formatter and style in styles:
        told |= {"format": handler.formatter._fmt, "datefmt": handler.formatter.datefmt, "style": styles[style]}  # noqa: SLF001
    if told.get("style") == "%":
        columns = getattr(handler, "_log_render", None)  # of rich, which shows these beside the text
        for shown_as, field in (("show_level", "%(levelname)-8s "), ("show_time", "%(asctime)s ")):
            if getattr(columns, shown_as, False):
                told["format"] = field + told["format"]
    return told


def _stream_of(handler: Any) -> object:
    of_python = getattr(handler, "python_handler", handler)  # absl's
    return getattr(of_python, "stream", None) or getattr(getattr(handler, "console", None), "file", None)  # rich's


def _deterministic(torch: Any) -> dict[str, bool]:
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return {"mode": torch.are_deterministic_algorithms_enabled(), "warn_only": only_warns}


_OF_JAX = {
    "enable_x64": False,
    "default_matmul_precision": None,
    "default_prng_impl": "threefry2x32",
    "threefry_partitionable": True,
    "numpy_dtype_promotion": "standard",
    "numpy_rank_promotion": "allow",
    "debug_nans": False,
    "debug_infs": False,
    "debug_key_reuse": False,
    "check_tracer_leaks": False,
    "enable_checks": False,
    "enable_custom_prng": False,
    "legacy_prng_key": "allow",
    "log_compiles": False,
    "explain_cache_misses": False,
    "traceback_filtering": "auto",
    "disable_jit": False,
}
_OF_SKLEARN = {
    "transform_output": "default",
    "enable_metadata_routing": False,
    "array_api_dispatch": False,
    "assume_finite": False,
}
# Of Python; on macOS, where "spawn" is usual, that is not sent to machines where another one is.
_START_METHOD = "spawn" if sys.platform == "darwin" else "forkserver" if sys.version_info >= (3, 14) else "fork"
# What decides how libraries compute: by what sets it there, what gives it, and its value where nobody has set it;
# of several at once, those that differ are set.
_Asked = str | Callable[[Any], object]
_SETTINGS: dict[str, dict[str, tuple[_Asked, object]]] = {
    "jax": {f"jax_{name}": (f"config.jax_{name}", usual) for name, usual in _OF_JAX.items()},
    "torch": {
        "set_default_dtype": ("get_default_dtype()", "torch.float32"),
        "set_float32_matmul_precision": ("get_float32_matmul_precision()", "highest"),
        "use_deterministic_algorithms": (_deterministic, {"mode": False, "warn_only": False}),
        "backends.mkldnn.enabled": ("backends.mkldnn.enabled", True),
        "backends.cudnn.enabled": ("backends.cudnn.enabled", True),
        "backends.cudnn.deterministic": ("backends.cudnn.deterministic", False),
        "backends.cudnn.benchmark": ("backends.cudnn.benchmark", False),
        "backends.cuda.matmul.allow_tf32": ("backends.cuda.matmul.allow_tf32", False),
        "set_grad_enabled": ("is_grad_enabled()", True),
        "autograd.set_detect_anomaly": ("is_anomaly_enabled()", False),
        "multiprocessing.set_sharing_strategy": ("multiprocessing.get_sharing_strategy()", "file_descriptor"),
    },
    "keras": {
        "config.set_floatx": ("config.floatx()", "float32"),
        "config.set_dtype_policy": ("config.dtype_policy().name", "float32"),
        "config.set_image_data_format": ("config.image_data_format()", "channels_last"),
    },
    "numpy": {"seterr": ("geterr()", {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"})},
    "sklearn": {"set_config": ("get_config()", _OF_SKLEARN)},
    "decimal": {
        "getcontext().prec": ("getcontext().prec", 28),
        "getcontext().rounding": ("getcontext().rounding", "ROUND_HALF_EVEN"),
    },
    "sys": {"setrecursionlimit": ("getrecursionlimit()", 1000)},
    "multiprocessing": {"set_start_method": ("context._default_context._actual_context._name", _START_METHOD)},
    # By ``hydra.main`` when it decorates, which a function of a script has behind it.
    "hydra": {"version.setbase": ("version.getbase().public", "1.1")},
}


_OF_NUMPY = {
    "precision": 8,
    "threshold": 1000,
    "edgeitems": 3,
    "linewidth": 75,
    "suppress": False,
    "sign": "-",
    "floatmode": "maxprec",
    "nanstr": "nan",
    "infstr": "inf",
    "legacy": False,  # "1.25" is what programs for NumPy 1 ask NumPy 2 for
}
# Likewise, of what libraries ask for while they work, and not when they are imported; of two others see ``_shown``.
_LATER: dict[str, dict[str, tuple[_Asked, object]]] = {
    "numpy": {"set_printoptions": ("get_printoptions()", _OF_NUMPY)},
    "torch": {
        "set_printoptions": (
            "_tensor_str.PRINT_OPTS.__dict__",
            {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80, "sci_mode": None},
        )
    },
    "plotly.io": {"templates.default": ("templates.default", "plotly")},
    "xarray": {
        "set_options": (
            "get_options()",
            {"keep_attrs": "default", "arithmetic_join": "inner", "display_style": "html", "display_max_rows": 12},
        )
    },
}
_PLACES = ("backend", "interactive", "toolbar", "webagg")  # of Matplotlib: where this process shows figures


def report_keras(captured: Mapping[str, str]) -> None:
    """Report once that Keras, which this process has imported, computes with something else than in jobs."""
    with contextlib.suppress(Exception):  # half imported, or Keras 2
        backend = sys.modules["keras"].config.backend()
        if backend != "jax" and "KERAS_BACKEND" not in captured:
            output.report_once(
                f"Keras computes with {backend} here and with jax in jobs; to keep {backend}, set "
                f'KERAS_BACKEND={backend} and pass capture_env_vars=["KERAS_BACKEND"]'
            )


def library_settings() -> dict[str, Any]:
    """Return, as part of the plan, how this process has told libraries to compute, as ``jax.config.update`` does.

    And, apart from that, what they were told about what they show. The script's own call is not repeated in the job,
    which would compute other numbers, or draw another figure.
    """
    found, later = _changed(_SETTINGS), _levels()
    for library, settings in (*_changed(_LATER).items(), *_shown()):
        if told := _plain(settings):
            later.setdefault(library, {}).update(told)
    return ({"settings": found} if found else {}) | ({"later": later} if later else {})


def _changed(table: Mapping[str, Mapping[str, tuple[_Asked, object]]]) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for library, settings in table.items():
        for setting, (asked, usual) in settings.items() if library in sys.modules else ():
            with contextlib.suppress(Exception):  # half imported, or of a version that does not have it
                module: Any = sys.modules[library]
                value: Any = asked(module) if callable(asked) else attributes.get(module, asked)
                if isinstance(usual, dict):
                    value = {name: value[name] for name in usual if value[name] != usual[name]} or usual
                if value != usual:
                    is_json = isinstance(value, bool | int | str | dict)
                    found.setdefault(library, {})[setting] = value if is_json else str(value)
    return found


def _shown() -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the options of pandas, and the parameters of Matplotlib, also by a style or seaborn, that were changed."""
    with contextlib.suppress(Exception):  # not imported; where it keeps them is nothing public (2.0 to 3.1)
        config: Any = sys.modules["pandas._config.config"]
        own = {name: each.defval for name, each in config._registered_options.items()}  # noqa: SLF001
        now = {name: functools.reduce(getitem, name.split("."), config._global_config) for name in own}  # noqa: SLF001
        names = own.keys() - config._deprecated_options  # noqa: SLF001
        yield "pandas", {f"options.{name}": now[name] for name in names if now[name] != own[name]}
    with contextlib.suppress(Exception):
        now, own = sys.modules["matplotlib"].rcParams, sys.modules["matplotlib"].rcParamsOrig
        changed = {name: now[name] for name in own if not name.startswith(_PLACES) and now[name] != own[name]}
        yield "matplotlib", {"rcParams.update": changed}


def _plain(told: Mapping[str, object]) -> dict[str, Any]:
    """Return what a page can hold of some values: no functions, and a cycler as the text that Matplotlib reads."""
    kept: dict[str, Any] = {}
    for name, given in told.items():
        value = str(given) if type(given).__name__ == "Cycler" else sys.maxsize if given == float("inf") else given
        if isinstance(value, dict):
            kept |= {name: inside} if (inside := _plain(value)) else {}
            continue
        with contextlib.suppress(TypeError, ValueError):
            kept[name] = json.loads(json.dumps(value, allow_nan=False))
    return kept
