"""Machine code where it can be kept, and where it cannot."""

from model_ops.machine import compilation as compiled


def test_where_machine_code_cannot_be_kept_it_is_compiled_afresh(monkeypatch):
    real = compiled.numba.njit

    def nowhere(cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    monkeypatch.setattr(compiled.numba, "njit", nowhere)
    assert compiled.compiled(lambda number: number + 1)(1) == 2
