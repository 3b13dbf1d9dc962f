# Makes each line of a text a C string literal.
s/[\\"]/\\&/g
s/.*/"&\\n"/
