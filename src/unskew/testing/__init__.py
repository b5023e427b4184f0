"""Checks for a model or an estimator of one's own."""

from unskew.testing.estimators import check_estimator
from unskew.testing.models import check_model

__all__ = ["check_estimator", "check_model"]
