"""The HTTP service: POST a blurred picture, get the restored one.

Importing this package loads neither torch nor any weights; `serving.app.create_app` builds the application.
"""
