"""The board's pictures as SVG. Places are percents; colours are in `marks.css`; `Markup.format` escapes strangers'
names.
"""
