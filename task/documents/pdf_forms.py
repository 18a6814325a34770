"""The fields of a form in a PDF, each with its name and value."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any


def fields_of(page: Any, form: Any) -> Iterator[str]:
    """One line per field on a pypdfium2 page: `name: value`; a box says whether it is checked."""
    import pypdfium2.raw as c

    for index in range(c.FPDFPage_GetAnnotCount(page)):
        annotation = c.FPDFPage_GetAnnot(page, index)
        if not annotation:
            continue
        try:
            if line := _field(annotation, form, c):
                yield line
        finally:
            c.FPDFPage_CloseAnnot(annotation)


def _field(annotation: Any, form: Any, c: Any) -> str:
    kind = c.FPDFAnnot_GetFormFieldType(form, annotation)
    name = _string(c.FPDFAnnot_GetFormFieldName, form, annotation, c)
    label = _string(c.FPDFAnnot_GetFormFieldAlternateName, form, annotation, c)
    shown = f"{name} ({label})" if name and label and label != name else name or label
    value = _string(c.FPDFAnnot_GetFormFieldValue, form, annotation, c)
    is_checked = bool(c.FPDFAnnot_IsChecked(form, annotation))
    if kind == c.FPDF_FORMFIELD_CHECKBOX:
        return f"{shown}: {'checked' if is_checked else 'not checked'}"
    if kind == c.FPDF_FORMFIELD_RADIOBUTTON:
        return f"{shown}: {value}" if is_checked else ""
    if kind in (c.FPDF_FORMFIELD_TEXTFIELD, c.FPDF_FORMFIELD_COMBOBOX, c.FPDF_FORMFIELD_LISTBOX):
        return f"{shown}: {' '.join(value.split()) or '(empty)'}"
    return ""


def _string(read: Callable[..., int], form: Any, annotation: Any, c: Any) -> str:
    size = read(form, annotation, None, 0)
    buffer = ctypes.create_string_buffer(size)
    read(form, annotation, ctypes.cast(buffer, ctypes.POINTER(c.FPDF_WCHAR)), size)
    return buffer.raw[: max(0, size - 2)].decode("utf-16-le", errors="replace").strip()
