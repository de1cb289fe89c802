"""What documents look like to people: functions from a document to what rich prints. They ask nothing."""
