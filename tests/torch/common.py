"""What the suites of this folder share besides ranks.py."""
import contextlib
import os
import tempfile

import torch

from harness import Skip


def zero(model, stage=3, **options):
    """zerod.torch, and the model sharded."""
    import zerod.torch as zt
    return zt, zt.shard(model, stage, **options)


def raises(kind, words, function, *arguments, **more):
    """The call raises, with a text that has these words, or this one."""
    try:
        function(*arguments, **more)
    except kind as error:
        words = [words] if isinstance(words, str) else words
        missing = [w for w in words if w not in str(error)]
        assert not missing, f"{missing} not in: {error}"
        return error
    raise AssertionError(f"{function} did not raise {kind}")


def needs_checkpoint():
    """Skips with a PyTorch that is too old for zerod.torch.checkpoint(), which must say so."""
    if not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):
        import zerod.torch as zt
        raises(NotImplementedError, [f"PyTorch {torch.__version__}", "newer PyTorch"], zt.checkpoint, torch.sin, torch.ones(1))
        raises(NotImplementedError, "newer PyTorch", zt.checkpoint_blocks, torch.nn.Linear(1, 1), [])
        raise Skip(f"zerod.torch.checkpoint() refuses PyTorch {torch.__version__}")


def save(path, tensors):
    """A safetensors file."""
    from zerod.torch import files
    files.write_set(path, [files.of_tensor(n, t) for n, t in tensors.items()], None, {})


@contextlib.contextmanager
def frozen_files(*models):
    """Paths of files with the frozen parameters of each model."""
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        paths = [os.path.join(directory, f"{i}.safetensors") for i in range(len(models))]
        for path, model in zip(paths, models):
            save(path, {n: p for n, p in model.named_parameters() if not p.requires_grad})
        yield paths


def adapters_only(model, trained):
    """Freezes all parameters but those with one of these words in their names."""
    for name, p in model.named_parameters():
        p.requires_grad_(any(t in name for t in trained))
    return model
