"""What the suites of this folder share besides ranks.py."""


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
