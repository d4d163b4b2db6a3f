"""The parameters of a kernel, in the order in which the host passes them."""

from tests.triton_codegen.graphs import draw, kernels_of


def test_pointers_come_first_and_sizes_last():
    (kernel,) = kernels_of(lambda x: x - x.logsumexp(-1, keepdim=True), draw(4, 8))
    kinds = [param.name.rsplit("_", 1)[-1] for param in kernel.params if not param.is_constant]

    assert kinds[:2] == ["ptr", "ptr"]
    assert "ptr" not in kinds[3:]
    assert set(kinds[-2:]) == {"rows", "cols"}


def test_names_that_kernels_use_are_given_once():
    def clashing(row, col):
        return row * col

    (kernel,) = kernels_of(clashing, draw(4, 8), draw(4, 8))
    names = [param.name for param in kernel.params]

    assert len(set(names)) == len(names)
    assert {"row_ptr", "col_ptr"} <= set(names)
