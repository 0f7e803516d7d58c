"""The folder that `submit --working-dir` sends with a job, as a zip file.

Left out are data, results, caches and repositories; files that hold keys by their names; what `.gitignore` or
`.rayignore` names, there or in a folder below; and links that lead out of it.
"""

import os
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch

from ray_adaplr.errors import InputError

LIMIT = 100 * 2**20  # Ray refuses a larger working directory
NOT_SHIPPED = {".git", ".venv", "venv", "data", "runs", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
SECRET_FOLDERS = {".ssh", ".aws", ".gnupg", ".azure", ".kube", ".docker", "gcloud", ".ray", ".huggingface", ".cache"}
_SECRETS = """
.env .env.* *.env .netrc .pypirc .npmrc .pgpass .htpasswd .git-credentials credentials credentials.* auth_token
*.pem *.key *.p12 *.pfx *.jks *.keystore *.kdbx *.ppk id_rsa* id_dsa* id_ecdsa* id_ed25519* kubeconfig
*service-account*.json *service_account*.json client_secret*.json secrets.* *secrets.toml token token.json _netrc
.boto .s3cfg .vault-token .dockerconfigjson .renviron *.tfstate
"""
SECRET_FILES = tuple(_SECRETS.split())
IGNORE_LISTS = (".gitignore", ".rayignore")
Rules = list[tuple[str, list[str]]]  # folders with their ignore lists


def pack(folder: str, file: str) -> str:
    """Zip a folder; returns the file's path. InputError when it is no folder, or larger than Ray accepts.

    Zipped here because Ray's own excludes would also drop the `data` room of the package.
    """
    if not os.path.isdir(folder):
        raise InputError(f"--working-dir {folder} is not a folder")
    paths = list(_shipped(folder))
    if (size := sum(os.path.getsize(path) for path in paths)) > LIMIT:
        raise InputError(
            f"--working-dir {folder} is {size / 2**20:.0f} MB; Ray takes at most {LIMIT / 2**20:.0f} MB, so put data "
            "on shared storage and send a smaller folder"
        )
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            archive.write(path, os.path.relpath(path, folder))
    return file


def _shipped(folder: str) -> Iterator[str]:
    rules: Rules = []
    inside = os.path.realpath(folder) + os.sep
    for place, folders, names in os.walk(folder):  # does not follow links to folders
        for name in IGNORE_LISTS:
            if name in names:
                with open(os.path.join(place, name), errors="replace") as lines:
                    rules.append((place, [line.strip() for line in lines]))
        kept = set(folders) - NOT_SHIPPED - SECRET_FOLDERS
        folders[:] = sorted(name for name in kept if not _ignored(os.path.join(place, name), rules, is_folder=True))
        for name in sorted(names):
            path = os.path.join(place, name)
            secret = any(fnmatch(name.lower(), pattern) for pattern in SECRET_FILES)
            leads_out = not os.path.realpath(path).startswith(inside)
            if os.path.isfile(path) and not (secret or leads_out or _ignored(path, rules)):
                yield path


def _ignored(path: str, rules: Rules, is_folder: bool = False) -> bool:
    """Whether the last rule of the ignore lists above a path that fits it leaves it out, as git has it."""
    ignored = False
    for base, lines in rules:
        relative = os.path.relpath(path, base)
        for line in lines if not relative.startswith("..") else ():
            pattern = line.lstrip("!").rstrip("/")
            if not pattern or line.startswith("#") or (line.endswith("/") and not is_folder):
                continue
            anchored = "/" in pattern
            subject = relative if anchored else os.path.basename(path)
            if fnmatch(subject, pattern.lstrip("/")) or fnmatch(f"/{subject}", pattern):
                ignored = not line.startswith("!")
    return ignored
