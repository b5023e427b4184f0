"""The Hugging Face Hub: a run as a repository, with a model card.

    hub.push_to_hub("run", "me/shop-pulse")
    model = hub.from_pretrained("me/shop-pulse")

A run holds the histories of all users. `push_to_hub` therefore refuses a public repository, unless the caller
says that the data may be public.
"""

import os
import shutil
import tempfile
from pathlib import Path

from unskew.api.create import load
from unskew.api.model import Model
from unskew.core.errors import BadInput
from unskew.integrations.tracking import missing
from unskew.report.templates import render
from unskew.training.run import read_card


def model_card(run: str | os.PathLike[str]) -> str:
    """The README of a run: its model, what it was trained on, and what its validation set measured."""
    folder = Path(run)
    return render("integrations/templates/model_card.md", card=read_card(folder), name=folder.name)


def save_pretrained(run: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Path:
    """Copy what a run needs to recommend, with its model card, into a new folder, as it is pushed.

    Parameters
    ----------
    run
        The folder of a run.
    folder
        The folder to write. It must not exist.
    """
    source, target = Path(run), Path(folder)
    load(source)  # or an error that says what is wrong with the run
    if target.exists():
        raise BadInput(f"{target}: is there already; choose another folder", field="folder")
    shutil.copytree(
        source, target, ignore=shutil.ignore_patterns("checkpoint.safetensors", "*.lock", "checkpoints")
    )
    (target / "README.md").write_text(model_card(source), encoding="utf-8")
    return target


def push_to_hub(run: str | os.PathLike[str], repository: str, public: bool = False) -> None:
    """Upload a run.

    Parameters
    ----------
    run
        The folder of a run.
    repository
        The name of the repository, such as `me/shop-pulse`. It is made if it is not there, as a private one.
    public
        Whether everybody may read the repository, and so the histories of all users in the run.
    """
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise missing("huggingface_hub", "the client of the Hub") from None
    client = HfApi()
    with tempfile.TemporaryDirectory() as scratch:
        folder = save_pretrained(run, Path(scratch) / "run")
        client.create_repo(repository, private=not public, exist_ok=True)
        if not public and not client.repo_info(repository).private:
            raise BadInput(
                f"{repository} is public, and a run holds the histories of all users; use a private "
                "repository, or public=True if the data may be public",
                field="public",
            )
        client.upload_folder(repo_id=repository, folder_path=folder)


def from_pretrained(
    repository: str | os.PathLike[str], revision: str | None = None, offline: bool = True
) -> Model:
    """Load a run from a folder, or from the Hub.

    Parameters
    ----------
    repository
        A folder that `save_pretrained` wrote, or the name of a repository.
    revision
        A branch, a tag or a commit of the repository.
    offline
        Use only what was downloaded before. False downloads what is missing.
    """
    if Path(repository).is_dir():
        return load(repository)
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError:
        raise missing("huggingface_hub", "the client of the Hub") from None
    try:
        folder = snapshot_download(os.fspath(repository), revision=revision, local_files_only=offline)
    except LocalEntryNotFoundError:
        raise BadInput(
            f"{repository}: neither a folder nor downloaded before; offline=False downloads it",
            field="repository",
        ) from None
    return load(folder)
