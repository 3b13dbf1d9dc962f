#!/usr/bin/env python3
"""The private names of Python, PyTorch, transformers and accelerate that the package uses: all are listed here, and are
there in the versions that run.

A name with one leading underscore that the package does not define itself belongs to somebody else.  Another version
may lack such a name; the list says what to look at then.
"""
import ast
import collections
import inspect
import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from harness import case, cases_of  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402

try:
    import accelerate
    import transformers
    import zerod.transformers
except ImportError:
    ranks.leave_out("no transformers: set TESTS_PYTHON to a Python that has deploy/python-requirements")

PACKAGE = os.path.join(ranks.CLIENT, "zerod")

# What is asked for a name, and the names; what an instance alone has is looked for in the source of its class.
PRIVATE = {
    "sys": (sys, ["_getframe"]),
    "named tuples": (collections.namedtuple("Pair", "a b"), ["_fields"]),
    "threading": (threading, ["_DummyThread"]),
    "torch._C": (torch._C, ["_autograd", "_cuda_getCurrentRawStream", "_current_graph_task_id", "_functorch"]),
    "torch": (torch, ["_C", "_foreach_copy_"]),
    "functions that are not traced": (torch.compiler.disable(lambda: None, recursive=False), [
        "_torchdynamo_disable", "_torchdynamo_disable_msg"]),
    "torch._C._autograd": (torch._C._autograd, ["_top_saved_tensors_default_hooks"]),
    "autograd": (torch.autograd.Variable, ["_execution_engine"]),
    "checkpoints of autograd": (inspect.getsource(torch.utils.checkpoint), ["_checkpoint_hook", "_recomputation_hook"]),
    "tensors": (torch.Tensor, ["_backward_hooks", "_make_subclass", "_make_wrapper_subclass", "_post_accumulate_grad_hooks",
                               "_version"]),
    "parameters": (inspect.getsource(nn.parameter), ["_is_param"]),
    "DTensor": (DTensor, ["_local_tensor"]),
    "modules": (nn.Module(), ["_buffers", "_forward_hooks", "_load_from_state_dict", "_modules", "_non_persistent_buffers_set", "_parameters",
                              "_save_to_state_dict"]),
    "modules that attend": (nn.MultiheadAttention, ["_reset_parameters"]),
    "compiled modules": (inspect.getsource(torch._dynamo.eval_frame.OptimizedModule), ["_orig_mod"]),
    "optimizers": (torch.optim.SGD([nn.Parameter(torch.zeros(1))]), [
        "_optimizer_load_state_dict_post_hooks", "_optimizer_load_state_dict_pre_hooks",
        "_optimizer_state_dict_post_hooks", "_optimizer_state_dict_pre_hooks"]),
    "GradScaler's state": (torch.amp.GradScaler("cpu").state_dict(), ["_growth_tracker"]),
    "torch.utils": (torch.utils, ["_pytree"]),
    "models of transformers": (transformers.PreTrainedModel, ["_init_weights", "_set_gradient_checkpointing"]),
    "initialised by transformers": (inspect.getsource(transformers.modeling_utils), ["_is_hf_initialized"]),
    "transformers.Trainer": (inspect.getsource(transformers.Trainer), ["_train_batch_size"]),
    "accelerate.Accelerator": (inspect.getsource(accelerate.Accelerator), [
        "_load_model_state_pre_hook", "_optimizers", "_save_model_state_pre_hook"]),
    "schedules": (inspect.getsource(torch.optim.lr_scheduler), ["_schedulers"]),
    "operators": (torch.ops.aten.add.Tensor, ["_schema"]),
}
# Methods of somebody else's class that a class of the package has anew
OVERRIDDEN = {
    "ServiceGroup": ["_allgather_base"],  # the name before all_gather_single
    "TrainerMixin": ["_load_best_model", "_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_rng_state",
                     "_move_model_to_device", "_save", "_save_checkpoint", "_save_optimizer_and_scheduler"],
}
MIXED_INTO = {"TrainerMixin": [transformers.Trainer]}


def is_private(name):
    return name.isidentifier() and name.startswith("_") and not name.startswith(("__", "_zerod")) and name != "_"


class Names(ast.NodeVisitor):
    """used: private names with the places of their use; own: what the package defines."""

    def __init__(self):
        self.used, self.own, self.path = {}, set(), ""

    def use(self, name, node):
        if is_private(name):
            self.used.setdefault(name, set()).add(f"{self.path}:{node.lineno}")

    def visit_ClassDef(self, node):
        self.own.add(node.name)
        self.generic_visit(node)

    visit_FunctionDef = visit_ClassDef

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Store):
            self.own.add(node.id)

    def visit_Attribute(self, node):
        self.use(node.attr, node)
        if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self":
            self.own.add(node.attr)
        self.generic_visit(node)

    def visit_ImportFrom(self, node):
        if node.level == 0 and not node.module.startswith("zerod"):
            for name in [*node.module.split("."), *(a.name for a in node.names)]:
                self.use(name, node)

    def visit_Constant(self, node):
        if isinstance(node.value, str):
            self.use(node.value, node)


def names_of_the_package():
    names = Names()
    for directory, _, files in os.walk(PACKAGE):
        for file in filter(lambda f: f.endswith(".py"), files):
            names.path = os.path.relpath(os.path.join(directory, file), PACKAGE)
            with open(os.path.join(directory, file), encoding="utf-8") as f:
                names.visit(ast.parse(f.read()))
    return names


@case
def every_private_name_is_listed():
    names = names_of_the_package()
    listed = {n for _, few in PRIVATE.values() for n in few}
    missing = {n: sorted(at) for n, at in names.used.items() if n not in names.own | listed}
    assert not missing, f"private names of others, which are not in PRIVATE: {missing}"
    assert not listed - set(names.used), f"nothing uses {sorted(listed - set(names.used))} any more"


@cases_of(PRIVATE)
def there_is(owner):
    asked, few = PRIVATE[owner]
    gone = [n for n in few if not (n in asked if isinstance(asked, (str, dict)) else hasattr(asked, n))]
    assert not gone, f"{owner}: {gone} of PyTorch {torch.__version__}, transformers {transformers.__version__}"


@case
def overridden_private_methods_are_listed():
    found = {}
    for module in [m for name, m in sys.modules.items() if name.split(".")[0] == "zerod"]:
        for kind in filter(inspect.isclass, vars(module).values()):
            others = [base for base in kind.__mro__[1:] if base.__module__.split(".")[0] != "zerod"]
            others += MIXED_INTO.get(kind.__name__, [])
            anew = sorted(n for n, what in vars(kind).items() if is_private(n) and inspect.isfunction(what)
                          and any(n in vars(base) for base in others))
            if kind.__module__ == module.__name__ and anew:
                found[kind.__name__] = anew
    assert found == OVERRIDDEN, found


if __name__ == "__main__":
    ranks.main()
