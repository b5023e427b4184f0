"""A simulated world is the same to the last bit on every machine."""

import os
import subprocess
import sys

import numpy as np

import unskew
from unskew.world import exact

SETTINGS = {"users": 120, "items": 60, "steps": 40, "trend": 0.7, "recency": 0.8, "born": 0.5, "novelty": 3.0}
FINGERPRINT = "d7d04f5c5cd9116ed02b160e894ac1a3"
SCRIPT = "import sys, unskew; print(unskew.simulate(**eval(sys.argv[1])).log.fingerprint())"
# Without these, numpy and OpenBLAS use other instructions, as on an older processor.
DISABLED = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR AVX2 FMA3 X86_V3 X86_V4"


def test_a_world_has_the_stored_fingerprint() -> None:
    assert unskew.simulate(**SETTINGS).log.fingerprint() == FINGERPRINT


def test_a_world_does_not_depend_on_the_instructions_of_the_processor() -> None:
    environment = os.environ | {"NPY_DISABLE_CPU_FEATURES": DISABLED, "OPENBLAS_CORETYPE": "Nehalem"}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, repr(SETTINGS)]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == FINGERPRINT


def test_the_functions_are_near_those_of_numpy() -> None:
    exponents = np.linspace(-79, 20, 20001).astype(np.float32)
    np.testing.assert_allclose(exact.exp(exponents), np.exp(exponents.astype(np.float64)), rtol=2e-7)
    numbers = np.geomspace(1e-9, 1e9, 20001)
    np.testing.assert_allclose(exact.log(numbers), np.log(numbers), rtol=1e-13, atol=1e-14)
    turns = np.linspace(-3, 3, 20001)
    for values, expected in zip(exact.sine_and_cosine(turns), (np.sin, np.cos), strict=True):
        np.testing.assert_allclose(values, expected(2 * np.pi * turns), atol=1e-14)
    np.testing.assert_allclose(exact.power(0.9, np.arange(200)), 0.9 ** np.arange(200), rtol=1e-13)
    drawn = exact.normal(np.random.default_rng(0), 100_000)
    np.testing.assert_allclose([drawn.mean(), drawn.std(), (drawn**4).mean()], [0, 1, 3], atol=0.05)


def test_products_are_the_same_in_any_order() -> None:
    rows, columns = (exact.on_grid(np.random.default_rng(seed).normal(0, 2, (50, 16))) for seed in (1, 2))
    order = np.random.default_rng(3).permutation(16)
    assert np.array_equal(exact.products(rows, columns), exact.products(rows[:, order], columns[:, order]))
    assert np.array_equal(np.rint(rows.astype(np.float64) / exact.GRID) * exact.GRID, rows)
