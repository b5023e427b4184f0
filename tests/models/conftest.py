"""Shared by the tests of single models."""

import pytest
import torch

import unskew


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def split(log: unskew.Log) -> unskew.Split:
    return unskew.split(log)
