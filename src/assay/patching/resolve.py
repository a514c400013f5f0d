"""From the names an answer writes to the files it means."""

from collections.abc import Iterable, Mapping, Sequence

from assay.patching import log, paths
from assay.patching.parse import RawSection
from assay.patching.types import Hunk, Line, PatchRefused, RefusalCode, Section


class _Joined(Section):
    """A section made of all that an answer says of a file; `starts` are the lines hunks claim."""

    def __init__(self, first: Section) -> None:
        super().__init__(first.path, first.action, [], first.source)
        self.starts: dict[tuple[tuple[Line, ...], str], set[int | None]] = {}


def resolved(
    sections: Sequence[RawSection],
    files: Mapping[str, str],
    protected: Sequence[str],
    symlinks: Iterable[str],
) -> list[Section]:
    """The sections with the paths they mean, one per file, repeats joined.

    Raises PatchRefused for a path that may not be touched, is unknown, or may mean several files.
    """
    links = tuple(symlinks)
    for named in sections:
        for name in (named.old, named.new):
            if name is not None:
                bare = paths.without_prefix(name)
                paths.check_name(bare if bare in files else name.removeprefix("./"), links, files)
    resolver = _Resolver(files, protected, sections)
    merged: dict[str, _Joined] = {}
    for raw in sections:
        section = resolver.section(raw)
        for path in (section.path, section.source):
            if path is not None:
                paths.check_target(path, files, protected, links)
        _merge(merged, section)
    sources = [section.source for section in merged.values() if section.source is not None]
    for section in merged.values():
        if section.source is not None and sources.count(section.source) > 1:
            raise PatchRefused(
                RefusalCode.CONFLICT, f"The answer renames `{section.source}` more than once."
            )
        if section.source in merged and section.source != section.path:
            raise PatchRefused(
                RefusalCode.CONFLICT,
                f"The answer renames `{section.source}` and changes it under its old name too.",
            )
    return [Section(s.path, s.action, s.hunks, s.source) for s in merged.values()]


def _merge(merged: dict[str, _Joined], section: Section) -> None:
    known = merged.setdefault(section.path, _Joined(section))
    if (known.action, known.source) != (section.action, section.source):
        raise PatchRefused(
            RefusalCode.CONFLICT,
            f"The answer both {known.action}s and {section.action}s `{section.path}`.",
        )
    if section.action == "create" and known.hunks and not _same(section.hunks, known.hunks):
        raise PatchRefused(
            RefusalCode.CONFLICT, f"The answer creates `{section.path}` twice, differently."
        )
    for hunk in section.hunks:
        # Equal hunks that claim different lines may be equal edits of two places.
        starts = known.starts.setdefault((hunk.lines, hunk.scope), set())
        if not starts or (hunk.start and hunk.start not in starts):
            known.hunks.append(hunk)
        starts.add(hunk.start)


def _same(one: Sequence[Hunk], other: Sequence[Hunk]) -> bool:
    return [hunk.lines for hunk in one] == [hunk.lines for hunk in other]


class _Resolver:
    def __init__(
        self, files: Mapping[str, str], protected: Sequence[str], sections: Sequence[RawSection]
    ) -> None:
        self.files = files
        self.protected = protected
        for section in sections:
            self._strip(section)
        self.prefixes = self._invented(sections)

    def _strip(self, raw: RawSection) -> None:
        if _has_prefixes(raw):
            is_new = raw.action == "create"
            raw.old, raw.new = self._stripped(raw.old), self._stripped(raw.new, new=is_new)
            raw.stripped = True
        elif raw.action == "rename":
            old, new = raw.old or "", raw.new or ""
            if old not in self.files and old.startswith("a/") and new.startswith("b/"):
                raw.old, raw.new = old.removeprefix("a/"), new.removeprefix("b/")
        elif raw.new is not None and raw.format == "unified_diff" and not self._is_known(raw.new):
            raw.new = paths.without_prefix(raw.new)

    def _is_folder(self, prefix: str) -> bool:
        return any(file.startswith(prefix) for file in self.files)

    def _is_known(self, name: str) -> bool:
        return name in self.files or self._is_folder(name.split("/")[0] + "/")

    def _invented(self, sections: Sequence[RawSection]) -> list[str]:
        """Folders that the answer puts before files that exist, longest first."""
        found: set[str] = set()
        for section in sections:
            for name in (section.old, section.new):
                if section.action != "edit" or name is None or name in self.files:
                    continue
                for file in paths.existing(name, self.files):
                    if name.endswith("/" + file):
                        found.add(name.removesuffix(file))
        found = {folder for folder in found if not self._is_folder(folder)}
        return sorted(found, key=len, reverse=True)

    def section(self, raw: RawSection) -> Section:
        if raw.action == "create":
            return Section(self._new_path(raw.new or ""), "create", raw.hunks)
        if raw.action == "delete":
            return Section(self._existing(raw.old or "", raw), "delete", raw.hunks)
        if raw.action == "rename":
            source = self._existing(raw.old or "", raw)
            moved = (raw.new or "") if raw.old == source else self._new_path(raw.new or "")
            return Section(moved, "rename", raw.hunks, source)
        return self._edited(raw)

    def _stripped(self, name: str | None, *, new: bool = False) -> str | None:
        """Without git's `a/` or `b/`, unless only a folder of that name explains the path."""
        if name is None:
            return None
        bare = paths.without_prefix(name)
        return name if not new and name in self.files and bare not in self.files else bare

    def _edited(self, raw: RawSection) -> Section:
        if raw.new is None or raw.old is None:
            return Section(self._by_content(list(self.files), raw, "the hunks"), "edit", raw.hunks)
        old, new = paths.existing(raw.old, self.files), paths.existing(raw.new, self.files)
        if not old and not new:
            if raw.hunks and not any(hunk.old for hunk in raw.hunks):
                # A new file announced without /dev/null.
                return Section(self._new_path(raw.new), "create", raw.hunks)
            return Section(self._unknown(raw.new), "edit", raw.hunks)
        common = [path for path in new if path in old] if old and new else new or old
        if not common or (not new and not _is_version(raw.new, raw.old)):
            raise PatchRefused(
                RefusalCode.BAD_PATH,
                f"The header names two files, `{raw.old}` and `{raw.new}`. Name the same file "
                "twice, or say `rename from` and `rename to`.",
            )
        if len(common) == 1:
            return Section(common[0], "edit", raw.hunks)
        return Section(self._by_content(common, raw, f"`{raw.new}`"), "edit", raw.hunks)

    def _unknown(self, name: str) -> str:
        """A protected path that the codebase does not show is refused as that by the caller."""
        path = paths.without_prefix(name)
        if paths.is_protected(path, self.protected):
            return path
        raise PatchRefused(RefusalCode.UNKNOWN_FILE, log.unknown_file(path, self.files))

    def _existing(self, name: str, raw: RawSection) -> str:
        if raw.action == "rename" and name not in self.files:
            self._check_done(raw)
        found = paths.existing(name, self.files)
        names = {name, *(name.removeprefix(prefix) for prefix in self.prefixes)}
        if not raw.stripped:
            names.add(paths.without_prefix(name))
        if raw.action == "delete" or not raw.hunks:
            # What else the name may mean must hold what is removed.
            found = [path for path in found if path in names or self._holds(path, raw)]
        if not found:
            self._check_done(raw)
            return self._unknown(name)
        if len(found) == 1:
            return found[0]
        return self._by_content(found, raw, f"`{name}`")

    def _check_done(self, raw: RawSection) -> None:
        """Refuse to delete or rename a file that is gone already as what it is: done."""
        path = (raw.old or "") if raw.stripped else paths.without_prefix(raw.old or "")
        renamed = raw.action == "rename" and raw.new in self.files
        if (renamed or raw.action == "delete") and not paths.is_protected(path, self.protected):
            raise PatchRefused(RefusalCode.ALREADY_APPLIED, log.gone_already(path, self.files))

    def _new_path(self, name: str) -> str:
        for prefix in self.prefixes:
            if name.startswith(prefix):
                return name.removeprefix(prefix)
        return name

    def _holds(self, path: str, raw: RawSection) -> bool:
        old = {text.strip() for hunk in raw.hunks for text in hunk.old} - {""}
        return bool(old) and old <= {line.strip() for line in self.files[path].split("\n")}

    def _by_content(self, candidates: list[str], raw: RawSection, what: str) -> str:
        """The one candidate that holds all the old lines."""
        fitting = [path for path in candidates if self._holds(path, raw)]
        if len(fitting) == 1:
            return fitting[0]
        listed = ", ".join(f"`{path}`" for path in (fitting or candidates)[:8])
        raise PatchRefused(
            RefusalCode.AMBIGUOUS,
            f"It is unclear which file {what} are meant for: {listed}. "
            "Write the path in the header exactly as the codebase lists it.",
        )


def _has_prefixes(raw: RawSection) -> bool:
    """Whether the names have git's `a/` and `b/`; those of a rename are written without."""
    return (
        raw.action != "rename"
        and (raw.old is None or raw.old.startswith("a/"))
        and (raw.new is None or raw.new.startswith("b/"))
    )


def _is_version(new: str, old: str) -> bool:
    """Whether the new name only says that it is another version: `train.py.new`."""
    one, other = paths.without_prefix(new), paths.without_prefix(old)
    return one.startswith(other + ".") or one == other
