"""The pictures of the leaderboard, drawn as SVG: the same marks in the page and in the files beside the Markdown.

Horizontal places are percents of the width of the nearest `svg` element, so that a picture fits a phone, a screen and a
sheet of paper; colours are variables of `marks.css`, so that it is dark where the page is. Names come from strangers:
`Markup.format` escapes them.
"""
