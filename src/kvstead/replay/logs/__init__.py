"""Reading request logs of every format that people have, into rows of one kind.

file ---> streams: lines, JSON documents, tables ---> Record ---> formats: which field is what ---> Row
                                                                     chats: texts to tokens and blocks
"""
