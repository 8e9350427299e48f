"""JSON Schemas of arguments, in the forms that servers take."""
