"""Dropout that repeats, sequences whose padding is invisible, tables in which nobody is the zero vector and
strangers are similar."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from unskew.data.log.split import Ids
from unskew.data.log.views import PAD
from unskew.nn.layers import Dropout, Embeddings, Encoder, Table, is_real, read_before, reseed

WIDTH, LENGTH = 8, 12


def encoder(dropout: float = 0.0, layers: int = 2) -> Encoder:
    torch.manual_seed(0)
    made = Encoder(WIDTH, layers, 2, 16, dropout, LENGTH).eval()
    with torch.no_grad():
        for (
            parameter
        ) in made.parameters():  # biases and places start at (nearly) nothing, where a fault would not show
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    return made


def sequences(lengths: list[int], width: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Left-padded vectors; what is in the padding is the same for all and not zero."""
    random = torch.Generator().manual_seed(seed)
    x = torch.full((len(lengths), width, WIDTH), 7.0)
    real = torch.zeros(len(lengths), width, dtype=torch.bool)
    for row, length in enumerate(lengths):
        x[row, width - length :] = torch.randn(length, WIDTH, generator=random)
        real[row, width - length :] = True
    return x, real


# Dropout


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5, 0.9])
def test_dropout_drops_its_share_and_keeps_the_mean(fraction: float) -> None:
    reseed(1, 2)
    size = 400_000
    out = Dropout(fraction).train()(torch.ones(size))
    dropped = float((out == 0).float().mean())
    deviation = (fraction * (1 - fraction) / size) ** 0.5
    assert abs(dropped - fraction) < 1 / 512 + 4 * deviation  # in steps of 1/256
    assert abs(float(out.mean()) - 1) < 4 * (fraction / (1 - fraction) / size) ** 0.5
    assert len(out.unique()) == 2  # nothing in between


def test_dropout_is_off_in_evaluation_and_at_zero() -> None:
    x = torch.randn(50, 4)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0).train()(x), x)
    assert not torch.equal(Dropout(0.5).train()(x), x)


def test_dropout_passes_the_gradient_where_it_let_the_value_pass() -> None:
    reseed(3)
    x = torch.ones(1000, requires_grad=True)
    out = Dropout(0.5).train()(x)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


def test_everything_drawn_repeats_after_reseeding() -> None:
    layer, x = Dropout(0.5).train(), torch.ones(500)

    def drawn(*what: int) -> tuple[Tensor, Tensor, Tensor]:
        reseed(*what)
        return layer(x), layer(x), torch.rand(5)

    first, again, other = drawn(4, 9), drawn(4, 9), drawn(4, 10)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert not torch.equal(first[0], first[1])  # two layers of one step differ


# The encoder


def padding_is_invisible(mean: Callable[[Tensor, Tensor], Tensor]) -> None:
    lengths = [3, 1, 5, 0]
    expected = mean(*sequences(lengths, 5))
    for width in (6, 9, LENGTH):
        torch.testing.assert_close(mean(*sequences(lengths, width)), expected, atol=1e-6, rtol=0)
    x, real = sequences(lengths, 9)
    x[~real] = torch.randn(int((~real).sum()), WIDTH)
    torch.testing.assert_close(mean(x, real), expected, atol=1e-6, rtol=0)


def test_padding_is_invisible() -> None:
    padding_is_invisible(encoder().mean)


def test_an_encoder_that_sees_its_padding_is_caught() -> None:
    made = encoder()
    with pytest.raises(AssertionError):
        padding_is_invisible(lambda x, real: made.mean(x, torch.ones_like(real)))
    with pytest.raises(AssertionError):  # places counted from the left
        padding_is_invisible(lambda x, real: made.mean(x + made.positions[: x.shape[1]], real))


def test_rows_are_independent() -> None:
    made, lengths = encoder(), [4, 2, 0, 5]
    x, real = sequences(lengths, 5)
    together = made.mean(x, real)
    for row in range(len(lengths)):
        torch.testing.assert_close(
            made.mean(x[row : row + 1], real[row : row + 1])[0], together[row], atol=1e-6, rtol=0
        )
    assert len({tuple(row.tolist()) for row in together}) == len(lengths)


def test_an_empty_row_has_zero_mean_and_finite_gradients() -> None:
    made = encoder()
    for lengths, width in (([0, 3], 4), ([0, 0], 4), ([0, 0], 0)):
        x, real = sequences(lengths, width)
        x.requires_grad_()
        mean = made.mean(x, real)
        assert mean.shape == (2, WIDTH)
        assert not mean[0].any()
        made.zero_grad()
        (mean.pow(2).sum() + x.sum()).backward()
        found = [p.grad for p in made.parameters() if p.grad is not None] + [x.grad]
        assert all(bool(gradient.isfinite().all()) for gradient in found)
        assert torch.equal(x.grad[0], torch.ones_like(x.grad[0]))  # nothing through the mean
        if lengths[1]:
            assert any(bool(gradient.any()) for gradient in found[:-1])


def test_the_mean_is_over_real_places_only() -> None:
    made = encoder()
    x, real = sequences([2, 5], 5)
    states = made(x, real)
    torch.testing.assert_close(made.mean(x, real)[0], states[0, 3:].mean(0))
    torch.testing.assert_close(made.mean(x, real)[1], states[1].mean(0))


def test_order_matters() -> None:
    made = encoder()
    x, real = sequences([4], 4)
    assert not torch.allclose(made.mean(x, real), made.mean(x.flip(1), real), atol=1e-2)
    with torch.no_grad():
        made.positions.zero_()  # it is the places that tell
    torch.testing.assert_close(made.mean(x, real), made.mean(x.flip(1), real), atol=1e-5, rtol=0)


def test_all_real_is_the_same_as_a_mask_that_hides_nothing() -> None:
    made = encoder()
    x, real = sequences([4, 4], 4)
    longer, longer_real = sequences([4, 4], 5)  # takes the way with a mask
    torch.testing.assert_close(made(x, real), made(longer, longer_real)[:, 1:], atol=1e-6, rtol=0)


# Tables


def table() -> Table:
    torch.manual_seed(0)
    made = Table(5, WIDTH, hidden=0.25)
    with torch.no_grad():
        made.unknown.fill_(9.0)
    return made


def test_nobody_is_zero_strangers_are_equally_and_neither_moves_a_known_one() -> None:
    made = table()
    ids = torch.tensor([[PAD, 0, 4], [5, 99, 2]])
    assert is_real(ids).tolist() == [[False, True, True], [True, True, True]]
    found = made(ids)
    assert not found[0, 0].any()
    assert (found[1, :2] == 9).all()
    assert torch.equal(found[0, 1:], made.weight[[0, 4]])
    found.sum().backward()
    assert made.weight.grad.sum(1).tolist() == [
        WIDTH,
        0,
        WIDTH,
        0,
        WIDTH,
    ]  # row 0 is met once, not once more for each other
    assert made.unknown.grad.tolist() == [2.0] * WIDTH  # and nobody adds nothing to it


def test_masked_places_read_as_strangers_and_get_no_gradient_of_their_own() -> None:
    made, ids = table(), torch.tensor([[0, 1, 2]])
    found = made(ids, torch.tensor([[False, True, False]]))
    assert (found[0, 1] == 9).all()
    found.sum().backward()
    assert made.weight.grad.sum(1).tolist() == [WIDTH, 0, WIDTH, 0, 0]


def test_a_share_of_the_known_ids_is_hidden_while_training_and_nobody_is_not() -> None:
    made, ids = table(), torch.tensor([[0, 1, 2, 3, PAD]]).repeat(2000, 1)
    reseed(1)
    found = made.train().hiding(ids)
    hidden = (found == 9).all(-1)
    assert not hidden[:, 4].any()
    assert not found[:, 4].any()
    assert float(hidden[:, :4].float().mean()) == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / 8000) ** 0.5)
    assert torch.equal(found[~hidden], made(ids)[~hidden])
    assert torch.equal(made.eval().hiding(ids), made(ids))


def test_a_table_without_strangers_gives_its_rows() -> None:
    made = Table(5, WIDTH)
    ids = torch.tensor([[1, 1], [3, 0]])
    assert torch.equal(made(ids), made.weight[ids])


# Ids too rare for a vector of their own

RARE = Ids(6, np.array([False, True, False, False, True, False]))
NOBODY_RARE = Ids(6)


@pytest.mark.parametrize("kind", [Embeddings, Table])
def test_rare_ids_and_strangers_share_one_learned_vector(kind: type[Embeddings]) -> None:
    torch.manual_seed(0)
    made = kind(RARE, WIDTH)
    assert made.weight.shape == (4, WIDTH)  # a row per id that has one
    with torch.no_grad():
        made.unknown.fill_(9.0)
    ids = torch.tensor([[PAD, 0, 1, 2, 3], [4, 5, 6, 99, PAD]])
    assert made.is_unknown(ids).tolist() == [
        [False, False, True, False, False],
        [True, False, True, True, False],
    ]
    found = made(ids)
    assert torch.equal(found[0, [1, 3, 4]], made.weight[:3])
    assert torch.equal(found[1, 1], made.weight[3])
    assert (found[0, 2] == 9).all()
    assert (found[1, [0, 2, 3]] == 9).all()
    assert not found[0, 0].any()
    assert not found[1, 4].any()
    assert torch.equal(made.table(), made(torch.arange(6)))
    (made(torch.tensor([0, 1, 4, 7])).sum() + made.table().sum()).backward()
    assert made.weight.grad.sum(1).tolist() == [2 * WIDTH, WIDTH, WIDTH, WIDTH]
    assert made.unknown.grad.tolist() == [3.0 + 2.0] * WIDTH  # met three times, and twice in the table


def test_without_rare_ids_a_stranger_is_the_average() -> None:
    torch.manual_seed(0)
    made = Embeddings(NOBODY_RARE, WIDTH)
    assert (made.unknown, made.row_of, len(made.weight)) == (None, None, 6)
    torch.testing.assert_close(made(torch.tensor([6, 50])), made.weight.mean(0).expand(2, -1))
    assert torch.equal(made.table(), made.weight)
    torch.manual_seed(0)
    assert torch.equal(Embeddings(6, WIDTH).weight, made.weight)  # a number is as good as what is known
    hidden = made(torch.tensor([[0, 1]]), torch.tensor([[True, False]]))
    torch.testing.assert_close(hidden[0], torch.stack([made.weight.mean(0), made.weight[1]]))


def test_all_of_them_may_be_rare() -> None:
    made = Embeddings(Ids(3, np.ones(3, bool)), WIDTH)
    with torch.no_grad():
        made.unknown.fill_(9.0)
    found = made(torch.tensor([[0, 2, PAD, 8]]))
    assert (found[0, [0, 1, 3]] == 9).all()
    assert not found[0, 2].any()
    assert (made.table() == 9).all()
    assert not made(torch.tensor([[PAD]])).any()


def test_where_the_rows_are_is_stored_with_them() -> None:
    made, other = Embeddings(RARE, WIDTH), Embeddings(Ids(6, np.roll(RARE.rare, 1)), WIDTH)
    other.load_state_dict(made.state_dict())
    assert torch.equal(other.table(), made.table())
    assert set(made.state_dict()) == {"weight", "unknown", "row_of"}
    assert set(Embeddings(6, WIDTH).state_dict()) == {"weight"}


def test_no_more_is_read_than_the_longest_past() -> None:
    ids = torch.tensor([[PAD, 3, 1, 4], [1, 5, 9, 2]])
    assert read_before(ids, torch.tensor([0, 2, 1])).tolist() == [[3, 1], [1, 5]]
    assert read_before(ids, torch.tensor([3])).tolist() == [[3, 1, 4], [1, 5, 9]]
    assert read_before(ids, torch.tensor([], dtype=torch.int64)).shape == (2, 0)
