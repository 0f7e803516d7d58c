"""The folder that `submit --working-dir` sends with a job, as a zip file.

Left out are data, results, caches and repositories; files that hold keys by their names; what `.gitignore` or
`.rayignore` names, there, in a folder below, or above in the same repository; and links that lead out of it, or into a
folder that is left out.
"""

import os
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from ray_adaplr.errors import InputError

LIMIT = 100 * 2**20  # Ray refuses a larger working directory
NOT_SHIPPED = {".git", ".venv", "venv", "data", "runs", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
_SECRET_FOLDERS = ".ssh .aws .gnupg .azure .kube .docker gcloud .ray .huggingface .kaggle .password-store .cache"
STAY_HERE = NOT_SHIPPED.union(_SECRET_FOLDERS.split())  # by the names of folders
_SECRET_FILES = """
.env .env.* *.env .envrc .netrc _netrc .pypirc .npmrc .yarnrc.yml .pgpass .my.cnf .htpasswd .git-credentials .boto
.s3cfg .databrickscfg .dockercfg .dockerconfigjson .renviron .vault-token .vault_pass* credentials.* secret.*
secrets.* kaggle.json *.pem *.key *.p8 *.p12 *.pfx *.jks *.keystore *.kdb *.kdbx *.ppk *.ovpn *.gpg *.tfstate
*.tfstate.* *.tfvars rclone.conf id_rsa* id_dsa* id_ecdsa* id_ed25519* kubeconfig *service-account*.json
*service_account*.json token *.token *_token *-token token.json token.txt *_token.json *_token.txt *-token.txt
*firebase-adminsdk*.json *accesskeys.csv rootkey.csv key.json *-key.json *_key.json *.tfvars.json .*_history .condarc
"""
SECRET_FILES = tuple(_SECRET_FILES.split())
_SECRET_WORDS = "password passwd passphrase secret credential apikey api_key api-key private_key private-key"
SECRET_WORDS = _SECRET_WORDS.split()
PROGRAMS = (".py", ".pyi", ".ipynb")  # a word in their names says what they are about
IGNORE_LISTS = (".gitignore", ".rayignore")
Rules = list[tuple[str, list[str]]]  # folders with their ignore lists


def pack(folder: str, file: str) -> str:
    """Zip a folder; returns the file's path. InputError when it is no folder, or larger than Ray accepts.

    Zipped here because Ray's own excludes would also drop the `data` room of the package.
    """
    if not os.path.isdir(folder):
        raise InputError(f"--working-dir {folder} is not a folder")
    listed = list(_listed(folder))
    secret = {path for path in listed if _is_secret(path) or _is_secret(os.path.realpath(path))}
    paths = [path for path in listed if path not in secret]
    if (size := sum(os.path.getsize(path) for path in paths)) > LIMIT:
        raise InputError(
            f"--working-dir {folder} is {size / 2**20:.0f} MB; Ray takes at most {LIMIT / 2**20:.0f} MB, so put data "
            "on shared storage and send a smaller folder"
        )
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for path in paths:
            archive.write(path, os.path.relpath(path, folder))
    if secret:
        names = ", ".join(os.path.relpath(path, folder) for path in sorted(secret))
        print(f"not sent, because their names say that they hold keys: {names}")
    return file


def _is_secret(path: str) -> bool:
    name = os.path.basename(path).lower()
    by_word = any(word in name for word in SECRET_WORDS) and not name.endswith(PROGRAMS)
    return by_word or any(fnmatch(name, pattern) for pattern in SECRET_FILES)


def _listed(folder: str) -> Iterator[str]:
    inside = os.path.realpath(folder) + os.sep
    rules = [rule for above in _above_in_repository(folder) for rule in _rules_in(above)]
    for place, folders, names in os.walk(folder):  # does not follow links to folders
        rules += _rules_in(place)
        kept = set(folders) - STAY_HERE
        folders[:] = sorted(name for name in kept if not _ignored(os.path.join(place, name), rules, is_folder=True))
        for name in sorted(names):
            path = os.path.join(place, name)
            real = os.path.realpath(path)
            # A link may lead out of the folder, or to a file within that is not sent under its own name.
            leads_out = not real.startswith(inside) or STAY_HERE & {*Path(real[len(inside) :]).parent.parts}
            if os.path.isfile(path) and not (leads_out or _ignored(path, rules)):
                yield path


def _above_in_repository(folder: str) -> list[Path]:
    """The folders above one that are in its repository, the topmost first; none outside of a repository."""
    places = [Path(folder).absolute(), *Path(folder).absolute().parents]
    top = next((number for number, place in enumerate(places) if (place / ".git").exists()), 0)
    return [*reversed(places[1 : top + 1])]


def _rules_in(folder: str | Path) -> Rules:
    lists = [file for name in IGNORE_LISTS if (file := Path(folder, name)).is_file()]
    return [(str(folder), [*map(str.strip, file.read_text("utf-8-sig", "replace").splitlines())]) for file in lists]


def _ignored(path: str, rules: Rules, is_folder: bool = False) -> bool:
    """Whether the last rule of the ignore lists above a path that fits it leaves it out, as git has it."""
    ignored = False
    for base, lines in rules:
        relative = os.path.relpath(path, base)
        for line in lines if not relative.startswith("..") else ():
            pattern = line.lstrip("!").rstrip("/")
            if not pattern or line.startswith("#") or (line.endswith("/") and not is_folder):
                continue
            subject = relative if "/" in pattern else os.path.basename(path)
            forms = [pattern.lstrip("/"), pattern.lstrip("/").replace("/**/", "/")]  # a/**/b is a/b too
            if any(fnmatch(subject, form) or fnmatch(f"/{subject}", form) for form in forms):
                ignored = not line.startswith("!")
    return ignored
